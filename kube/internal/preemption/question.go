package preemption

import (
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/budgets"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// question is which of the victims of a node to end.
type question struct {
	fleet.Preemption
	victims []*preemption.DomainVictim
	at      map[types.UID]int // positions of victims by pod
}

// question returns the question for a node. The result is false for a node that is not known.
func (p *Plugin) question(a *attempt, pod *v1.Pod, info fwk.NodeInfo, victims []*preemption.DomainVictim, list []*policy.PodDisruptionBudget) (*question, bool) {
	name := info.Node().Name
	node, holdings, known := p.nodes.Node(name)
	if !known || len(victims) > fleet.MaxVictims {
		return nil, false
	}
	q := &question{victims: victims, at: map[types.UID]int{}}
	q.Node, q.Requests = node, a.requests
	counting := budgets.New(list)
	for i, v := range victims {
		q.Victims = append(q.Victims, victim(v, name, counting))
		for _, info := range v.Pods() {
			q.at[info.GetPod().UID] = i
		}
	}
	q.Budgets = counting.Allowed
	for i := range holdings {
		if held, ok := q.endsWith(&holdings[i]); ok {
			q.Held = append(q.Held, held)
		}
	}
	return q, true
}

// victim describes a victim by what is free on a node when it has ended.
func victim(v *preemption.DomainVictim, node string, counting *budgets.Budgets) fleet.Victim {
	made := fleet.Victim{Pods: len(v.Pods()), Priority: v.Priority()}
	if start := v.EarliestStartTime(); start != nil {
		made.Started = start.UnixNano()
	}
	for _, info := range v.Pods() {
		pod := info.GetPod()
		if at := counting.Of(pod); len(at) > 0 {
			made.Budgets = append(made.Budgets, at)
		}
		if pod.Spec.NodeName != node {
			continue
		}
		cpu, memory := fleetview.Taken(pod)
		made.CPU, made.Memory = made.CPU+cpu, made.Memory+memory
	}
	made.CPU, made.Memory = min(made.CPU, fleet.MaxAmount), min(made.Memory, fleet.MaxAmount)
	return made
}

// endsWith returns what ends with victims; false when a pod holds it that is none.
func (q *question) endsWith(h *fleetview.Held) (fleet.Held, bool) {
	victims, ends := h.EndsWith(func(uid string) (int, bool) {
		at, found := q.at[types.UID(uid)]
		return at, found
	})
	return fleet.Held{GPUs: h.GPUs, Traffic: h.Traffic, Victims: victims}, ends
}

// of returns the victims at positions.
func (q *question) of(positions []int) []*preemption.DomainVictim {
	victims := make([]*preemption.DomainVictim, 0, len(positions))
	for _, i := range positions {
		victims = append(victims, q.victims[i])
	}
	return victims
}

// score says how good the GPUs are that the pod gets when the victims have ended.
func (q *question) score(victims []*preemption.DomainVictim) fleet.Score {
	return q.scoreOf(pods(victims))
}

func (q *question) scoreOf(pods []*v1.Pod) fleet.Score {
	var positions []int
	for _, pod := range pods {
		if at, found := q.at[pod.UID]; found {
			positions = append(positions, at)
		}
	}
	if plan, ok := q.Evaluate(positions); ok {
		return plan.Score
	}
	return fleet.NoFit
}
