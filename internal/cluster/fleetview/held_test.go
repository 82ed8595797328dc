package fleetview

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// TestEndsWith checks whose end makes devices free.
func TestEndsWith(t *testing.T) {
	positions := map[string]int{"a": 4, "b": 2, "c": 4}
	tests := map[string]struct {
		pods []string
		want []int
	}{
		"one":                   {[]string{"a"}, []int{4}},
		"two":                   {[]string{"a", "b"}, []int{4, 2}},
		"two that end together": {[]string{"a", "c"}, []int{4}},
		"one that goes on":      {[]string{"a", "other"}, nil},
		"none":                  {nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			held := Held{Pods: test.pods}
			got, ends := held.EndsWith(func(uid string) (int, bool) {
				at, found := positions[uid]
				return at, found
			})
			if !cmp.Equal(got, test.want) || ends != (test.want != nil) {
				t.Errorf("got %v, %v; want %v", got, ends, test.want)
			}
		})
	}
}

func TestHeld(t *testing.T) {
	claim := func(uids ...string) v1alpha1.Holder {
		h := v1alpha1.Holder{Kind: "Claim"}
		for _, uid := range uids {
			h.Pods = append(h.Pods, v1alpha1.HolderPod{UID: uid})
		}
		return h
	}
	want := func(gpus int32) []fleet.Shape { return []fleet.Shape{{Resource: whole, GPUs: gpus}} }
	tests := map[string]struct {
		node *v1alpha1.GPUNode
		pods []Pod
		want []Held
	}{
		"reported":  {gpuNode(4, held(1, pod("a"))), []Pod{{UID: "a", Requests: want(1)}}, []Held{{Pods: []string{"a"}, GPUs: 2}}},
		"predicted": {gpuNode(4), []Pod{{UID: "a", Requests: want(2)}}, []Held{{Pods: []string{"a"}, GPUs: 3}}},
		"a first container is reported, a second one predicted": {
			gpuNode(2, held(1, pod("a"))), []Pod{{UID: "a", Requests: append(want(1), want(1)...)}},
			[]Held{{Pods: []string{"a"}, GPUs: 2}, {Pods: []string{"a"}, GPUs: 1}},
		},
		"a claim of two pods":                {gpuNode(2, held(0, claim("a", "b"))), []Pod{{UID: "a"}, {UID: "b"}}, []Held{{Pods: []string{"a", "b"}, GPUs: 1}}},
		"a claim of which one pod has ended": {gpuNode(2, held(0, claim("a", "b"))), []Pod{{UID: "b"}}, []Held{{Pods: []string{"b"}, GPUs: 1}}},
		"a claim without pods":               {gpuNode(2, held(0, claim())), []Pod{{UID: "a"}}, nil},
		"a pod that has ended":               {gpuNode(2, held(0, pod("gone"))), nil, nil},
		"maintenance":                        {gpuNode(2, held(0, v1alpha1.Holder{Kind: "Maintenance"})), []Pod{{UID: "a"}}, nil},
		"two replicas of one pod, one of another": {
			gpuNode(1, replicated(0, 4), held(0, pod("a"), pod("b"), pod("a"))), []Pod{{UID: "a"}, {UID: "b"}},
			[]Held{{Pods: []string{"a"}, GPUs: 1}, {Pods: []string{"b"}, GPUs: 1}, {Pods: []string{"a"}, GPUs: 1}},
		},
		"bandwidth": {
			gpuNode(1, held(0, pod("a"))), []Pod{{UID: "a", Requests: []fleet.Shape{{Resource: whole, GPUs: 1, Traffic: fleet.Bandwidth}}}},
			[]Held{{Pods: []string{"a"}, GPUs: 1, Traffic: fleet.Bandwidth}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			view := Build(Input{Node: kubeNode(map[string]string{whole: "4", whole + ".shared": "4"}), Hardware: NewReader().Read(test.node), Pods: test.pods})
			if diff := cmp.Diff(test.want, view.Held()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
