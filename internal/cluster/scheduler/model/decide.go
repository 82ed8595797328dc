package model

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Requests returns what a pod requests, by the resources that are offered now. Any goroutine may call it.
func (m *Model) Requests(pod *corev1.Pod) []fleet.Shape { return m.resources.Load().Requests(pod) }

// Scores appends the score of each node for the requests of a pod, by the index that Index returns.
func (m *Model) Scores(policy string, requests []fleet.Shape, scores []fleet.Score) ([]fleet.Score, error) {
	d, err := m.decider(policy)
	if err != nil {
		return nil, err
	}
	if len(requests) == 1 {
		return d.Scores(requests[0], scores), nil
	}
	for i := range m.fleet.Len() {
		_, score, _ := d.Together(i, requests)
		scores = append(scores, score)
	}
	return scores, nil
}

// decider returns the decider of a policy.
func (m *Model) decider(policy string) (*fleet.Decider, error) {
	if measure, changed := m.mix.measure(*m.resources.Load()); changed {
		clear(m.deciders)
		clear(m.planners)
		m.mix.current = measure
	}
	if d := m.deciders[policy]; d != nil {
		return d, nil
	}
	chosen, err := fleet.NewPolicy(policy, m.mix.current)
	if err != nil {
		return nil, err
	}
	d := fleet.NewDecider(m.fleet, chosen)
	m.deciders[policy] = d
	return d, nil
}

// Index returns the index of a node.
func (m *Model) Index(node string) (int, bool) {
	if m.fleet == nil {
		return 0, false
	}
	return m.fleet.Find(node)
}

// Current returns the index of a node, if the model has it in the state that it is given.
func (m *Model) Current(node fwk.NodeInfo) (int, bool) {
	i, ok := m.Index(node.Node().Name)
	if !ok || m.seen[i] != node.GetGeneration() {
		return 0, false
	}
	return i, true
}

// Suppose returns the view of a node that is not in the snapshot as it is given, for example without some of its pods. It changes nothing,
// and may be called by several goroutines of one scheduling cycle.
func (m *Model) Suppose(node fwk.NodeInfo) fleetview.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fleetview.Build(m.input(node))
}

// View returns a node, to read.
func (m *Model) View(i int) *fleetview.View { return &m.views[i] }

// Len returns the number of nodes.
func (m *Model) Len() int {
	if m.fleet == nil {
		return 0
	}
	return m.fleet.Len()
}

// Explain says for all nodes why a request does not fit on them.
func (m *Model) Explain(s fleet.Shape) fleet.Explanation { return m.fleet.Explain(s) }

// Predict returns the GPUs that a pod would get on node i: a list of UUIDs per request for devices. It is nil where they cannot be
// predicted.
func (m *Model) Predict(policy string, i int, requests []fleet.Shape) [][]string {
	d, err := m.decider(policy)
	if err != nil || m.views[i].Counted {
		return nil
	}
	ops, _, ok := d.Together(i, requests)
	if !ok {
		return nil
	}
	var gpus [][]string
	for at := 0; at < len(ops); {
		// A request for several replicas or MIG devices is as many operations.
		request, set, have := requests[len(gpus)], fleet.GPUSet(0), int32(0)
		for have < request.GPUs && at < len(ops) {
			set |= ops[at].GPUs
			have += ops[at].Shape.GPUs
			at++
		}
		if request.GPUs == 0 {
			return nil
		}
		gpus = append(gpus, m.views[i].Devices(set))
	}
	return gpus
}

// Judge scores GPUs of a node that something else has chosen. n is a copy of the node of a view, with what is free for this pod.
func (m *Model) Judge(policy string, n *fleet.Node, s fleet.Shape, gpus fleet.GPUSet) (fleet.Score, error) {
	d, err := m.decider(policy)
	if err != nil {
		return fleet.NoFit, err
	}
	judge, ok := d.Scorer().(fleet.Judge)
	if !ok {
		return fleet.NoFit, nil
	}
	c := fleet.Chosen(n, &s, gpus)
	return judge.Judge(n, &s, &c), nil
}

// See counts a pod for the workload mix, once.
func (m *Model) See(pod types.UID, requests []fleet.Shape) { m.mix.see(pod, requests) }
