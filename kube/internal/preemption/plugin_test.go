package preemption

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// budget is a PodDisruptionBudget for the pods with a label.
func budget(name string, allowed int32) *policy.PodDisruptionBudget {
	return &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"budget": name}}},
		Status:     policy.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

func TestPostFilter(t *testing.T) {
	tests := map[string]struct {
		cluster cluster
		pod     *v1.Pod
		node    string
		victims []string
		refuses bool
	}{
		"one victim of 4 GPUs rather than four of 1": {
			cluster: cluster{nodes: []*v1.Node{node("n", 8)}, pods: []*v1.Pod{
				pod("big", "n", 5, 900, 0, 1, 2, 3).Obj(), pod("a", "n", 5, 1, 4).Obj(), pod("b", "n", 5, 2, 5).Obj(), pod("c", "n", 5, 3, 6).Obj(), pod("d", "n", 5, 4, 7).Obj(),
			}},
			pod: waiting(4).Obj(), node: "n", victims: []string{"big"},
		},
		"the younger ones where the links are equal": {
			cluster: cluster{nodes: []*v1.Node{node("n", 8)}, pods: []*v1.Pod{
				pod("a", "n", 5, 900, 0, 3).Obj(), pod("b", "n", 5, 4, 1, 4).Obj(), pod("c", "n", 5, 901, 2, 5).Obj(), pod("d", "n", 5, 3, 6).Obj(), pod("e", "n", 9, 3, 7).Obj(),
			}},
			pod: waiting(4).Obj(), node: "n", victims: []string{"a", "b"},
		},
		"the two whose GPUs are linked": {
			cluster: cluster{nodes: []*v1.Node{node("n", 4)}, pods: []*v1.Pod{
				pod("a", "n", 5, 900, 0).Obj(), pod("b", "n", 5, 1, 2).Obj(), pod("c", "n", 5, 901, 1).Obj(), pod("d", "n", 9, 3, 3).Obj(),
			}},
			pod: waiting(2).Obj(), node: "n", victims: []string{"a", "c"},
		},
		"the node where the GPUs are linked": {
			cluster: cluster{nodes: []*v1.Node{node("a", 4), node("b", 4)}, pods: []*v1.Pod{
				pod("a0", "a", 5, 1, 0, 2).Obj(), pod("a1", "a", 9, 1, 1, 3).Obj(), pod("b0", "b", 5, 900, 0, 1).Obj(), pod("b1", "b", 9, 900, 2, 3).Obj(),
			}},
			pod: waiting(2).Obj(), node: "b", victims: []string{"b0"},
		},
		"a budget is kept where there is a choice": {
			cluster: cluster{
				nodes:   []*v1.Node{node("n", 2)},
				pods:    []*v1.Pod{pod("kept", "n", 1, 1, 0).Label("budget", "none").Obj(), pod("other", "n", 9, 900, 1).Obj()},
				budgets: []*policy.PodDisruptionBudget{budget("none", 0)},
			},
			pod: waiting(1).Obj(), node: "n", victims: []string{"other"},
		},
		"a budget is violated where there is none": {
			cluster: cluster{
				nodes:   []*v1.Node{node("n", 1)},
				pods:    []*v1.Pod{pod("kept", "n", 1, 1, 0).Label("budget", "none").Obj()},
				budgets: []*policy.PodDisruptionBudget{budget("none", 0)},
			},
			pod: waiting(1).Obj(), node: "n", victims: []string{"kept"},
		},
		"of two pods with one disruption left one ends": {
			cluster: cluster{
				nodes: []*v1.Node{node("a", 2), node("b", 2)},
				pods: []*v1.Pod{
					pod("a0", "a", 5, 1, 0).Label("budget", "one").Obj(), pod("a1", "a", 5, 2, 1).Label("budget", "one").Obj(), pod("b0", "b", 9, 900, 0, 1).Obj(),
				},
				budgets: []*policy.PodDisruptionBudget{budget("one", 1)},
			},
			pod: waiting(2).Obj(), node: "b", victims: []string{"b0"},
		},
		"several of a lower priority rather than one of a higher": {
			cluster: cluster{nodes: []*v1.Node{node("n", 4)}, pods: []*v1.Pod{pod("high", "n", 9, 1, 0, 1).Obj(), pod("a", "n", 5, 900, 2).Obj(), pod("b", "n", 5, 901, 3).Obj()}},
			pod:     waiting(2).Obj(), node: "n", victims: []string{"a", "b"},
		},
		"a node with a lower highest priority": {
			cluster: cluster{nodes: []*v1.Node{node("a", 1), node("b", 2)}, pods: []*v1.Pod{pod("a0", "a", 9, 1, 0).Obj(), pod("b0", "b", 5, 900, 0).Obj(), pod("b1", "b", 9, 900, 1).Obj()}},
			pod:     waiting(1).Obj(), node: "b", victims: []string{"b0"},
		},
		"nothing helps": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{pod("a", "n", 5, 1, 0).Obj(), pod("same", "n", 100, 1, 1).Obj()}},
			pod:     waiting(2).Obj(), refuses: true,
		},
		"preemptionPolicy Never": {
			cluster: cluster{nodes: []*v1.Node{node("n", 1)}, pods: []*v1.Pod{pod("a", "n", 5, 1, 0).Obj()}},
			pod:     waiting(1).PreemptionPolicy(v1.PreemptNever).Obj(), refuses: true,
		},
		"the filters refuse the best plan": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{pod("young", "n", 5, 1, 0).Obj(), pod("port", "n", 5, 900, 1).HostPort(80).Obj()}},
			pod:     waiting(1).HostPort(80).Obj(), node: "n", victims: []string{"port"},
		},
		"the filters refuse all plans for GPUs": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{pod("young", "n", 5, 1, 0, 1).Obj(), pod("port", "n", 5, 900).HostPort(80).Obj()}},
			pod:     waiting(1).HostPort(80).Obj(), node: "n", victims: []string{"port", "young"},
		},
		"GPUs are free, a port is not": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{pod("young", "n", 5, 1, 0).Obj(), pod("port", "n", 5, 900).HostPort(80).Obj()}},
			pod:     waiting(1).HostPort(80).Obj(), node: "n", victims: []string{"port"},
		},
		"a node that is not known": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{pod("old", "n", 5, 900, 0).Obj(), pod("young", "n", 5, 1, 1).Obj()}, unknown: []string{"n"}},
			pod:     waiting(1).Obj(), node: "n", victims: []string{"young"},
		},
		"GPUs and CPU": {
			cluster: cluster{nodes: []*v1.Node{node("n", 2)}, pods: []*v1.Pod{
				pod("gpu", "n", 5, 900, 0).Obj(), pod("both", "n", 5, 901, 1).Req(map[v1.ResourceName]string{"cpu": "2"}).Obj(),
				pod("cpu", "n", 5, 1).Req(map[v1.ResourceName]string{"cpu": "11"}).Obj(),
			}},
			pod: waiting(1).Req(map[v1.ResourceName]string{"cpu": "1500m"}).Obj(), node: "n", victims: []string{"both"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := test.cluster
			c.pods = append(slices.Clone(c.pods), test.pod)
			s := c.scheduler(t)
			got := s.preempt(t, &c, c.berth(t, s), test.pod)
			if got.Node != test.node || !slices.Equal(got.Victims, test.victims) || (got.Code == fwk.Unschedulable) != test.refuses {
				t.Errorf("%v; want node %q, victims %v", got, test.node, test.victims)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	tests := map[string]struct {
		object runtime.Object
		want   *config.DefaultPreemptionArgs
	}{
		"none":    {nil, &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}},
		"in-tree": {&config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 7}, &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 7}},
		"a configuration file": {
			&runtime.Unknown{Raw: []byte(`{"minCandidateNodesPercentage": 50}`), ContentType: runtime.ContentTypeJSON},
			&config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 50, MinCandidateNodesAbsolute: 100},
		},
		"nonsense": {&runtime.Unknown{Raw: []byte(`{"minCandidateNodesPercentage": "x"}`), ContentType: runtime.ContentTypeJSON}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := arguments(test.object)
			if (err != nil) != (test.want == nil) || err == nil && *got != *test.want {
				t.Errorf("%+v, %v; want %+v", got, err, test.want)
			}
		})
	}
	if _, err := New(Deps{})(t.Context(), nil, nil); err == nil {
		t.Error("a plugin without nodes; want an error")
	}
}

// TestPreEnqueue: while the victims of a pod are being ended in the background, it does not enter the queue.
func TestPreEnqueue(t *testing.T) {
	began, proceed, p := make(chan struct{}), make(chan struct{}), waiting(1).Obj()
	c := &cluster{
		nodes: []*v1.Node{node("n", 1)}, pods: []*v1.Pod{pod("a", "n", 5, 1, 0).Obj(), p}, async: true,
		deleting: func() { close(began); <-proceed },
	}
	s := c.scheduler(t)
	plugin := c.berth(t, s)
	if got := s.preempt(t, c, plugin, p); got.Node != "n" {
		t.Fatal(got)
	}
	<-began
	if status := plugin.PreEnqueue(t.Context(), p); status.IsSuccess() {
		t.Error("the pod enters the queue while its victim is being ended")
	}
	close(proceed)
	for !plugin.PreEnqueue(t.Context(), p).IsSuccess() {
		goruntime.Gosched()
	}
	if hints, err := plugin.EventsToRegister(t.Context()); err != nil || len(hints) != 1 {
		t.Errorf("events %v, %v; want that of an ended pod", hints, err)
	}
}

func BenchmarkPostFilter(b *testing.B) {
	for name, dra := range map[string]bool{"device plugin": false, "claims": true} {
		b.Run(name, func(b *testing.B) {
			c, p := &cluster{}, waiting(4).Obj()
			if dra {
				p, c.dra = claiming(), &fakeDRA{perNode: 8, all: []*resourceapi.ResourceClaim{wanted("want", 4, false)}}
			}
			for i := range 100 {
				name := fmt.Sprint("n", i)
				c.nodes = append(c.nodes, node(name, 8))
				for k := range 8 {
					q := pod(fmt.Sprint(name, "-", k), name, int32(k%3), i*8+k, k)
					if !dra {
						c.pods = append(c.pods, q.Obj())
						continue
					}
					one := runs(fmt.Sprint(name, "-", k), name, int32(k%3), i*8+k)
					c.dra.all = append(c.dra.all, claim(fmt.Sprint(name, "-", k), name, []string{fmt.Sprint(name, "-", k)}, k))
					c.pods = append(c.pods, using(one, fmt.Sprint(name, "-", k)))
				}
				if dra {
					c.dra.nodes = append(c.dra.nodes, name)
				}
			}
			c.pods = append(c.pods, p)
			s := c.scheduler(b)
			for which, plugin := range map[string]postFilter{"berth": c.berth(b, s), "in-tree": c.inTree(b, s)} {
				b.Run(which, func(b *testing.B) {
					for b.Loop() {
						if got := s.preempt(b, c, plugin, p); !dra && got.Node == "" {
							b.Fatal(got)
						}
					}
				})
			}
		})
	}
}
