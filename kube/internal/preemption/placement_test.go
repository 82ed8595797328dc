package preemption

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	basemetrics "k8s.io/component-base/metrics"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
)

// withPlacement gives a cluster the plugin BerthPlacement and GPUNodes of four GPUs in two linked pairs, held as the pods' annotations say.
// GPUs whose index is in gone do not answer.
func withPlacement(t *testing.T, c *cluster, gone ...int) {
	t.Helper()
	c.placement = placement.NewFactory(placement.Deps{Register: func(basemetrics.Registerable) error { return nil }})
	for _, n := range c.nodes {
		made := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		made.Status.Topology = []string{"X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"}
		for i := range 4 {
			d := v1alpha1.GPUDevice{UUID: fmt.Sprintf("GPU-%s-%d", n.Name, i), Index: i, Offered: &v1alpha1.DeviceOffer{Resource: gpus}}
			d.Health.State = "Healthy"
			if slices.Contains(gone, i) {
				d.Health.State = "Unhealthy"
			}
			for _, p := range c.pods {
				if p.Spec.NodeName == n.Name && heldBy(p).Has(i) {
					d.Holders = append(d.Holders, v1alpha1.Holder{Kind: "Pod", PodUID: string(p.UID)})
				}
			}
			made.Status.Devices = append(made.Status.Devices, d)
		}
		hardware := fleetview.NewReader().Read(made)
		if hardware.Note != "" {
			t.Fatal(hardware.Note)
		}
		c.placement.Model().SetHardware(hardware)
	}
}

// TestWithPlacement: with the filter of BerthPlacement, and its views of the nodes, the choice is the same: the filter sees a node without
// the victims.
func TestWithPlacement(t *testing.T) {
	tests := map[string]struct {
		pods    []*v1.Pod
		gone    []int
		want    int
		victims []string
	}{
		"the two whose GPUs are linked": {
			pods: []*v1.Pod{pod("a", "n", 5, 900, 0).Obj(), pod("b", "n", 5, 1, 2).Obj(), pod("c", "n", 5, 901, 1).Obj(), pod("d", "n", 9, 3, 3).Obj()},
			want: 2, victims: []string{"a", "c"},
		},
		"one pod of two GPUs": {
			pods: []*v1.Pod{pod("a", "n", 5, 900, 0, 1).Obj(), pod("b", "n", 5, 1, 2).Obj(), pod("c", "n", 5, 2, 3).Obj()},
			want: 2, victims: []string{"a"},
		},
		"a GPU that is gone does not help": {
			pods: []*v1.Pod{pod("a", "n", 9, 900, 0).Obj(), pod("b", "n", 5, 1, 2).Obj(), pod("c", "n", 9, 901, 1).Obj(), pod("d", "n", 20, 3, 3).Obj()},
			gone: []int{2}, want: 1, victims: []string{"a"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := waiting(test.want)
			c := &cluster{nodes: []*v1.Node{node("n", 4)}, pods: append(slices.Clone(test.pods), p.Obj())}
			for _, q := range c.pods {
				q.Spec.Containers[0].Resources.Limits = q.Spec.Containers[0].Resources.Requests
			}
			withPlacement(t, c, test.gone...)
			s := c.scheduler(t)
			if got := s.preempt(t, c, c.berth(t, s), c.pods[len(c.pods)-1]); !slices.Equal(got.Victims, test.victims) {
				t.Errorf("%v; want victims %v", got, test.victims)
			}
		})
	}
}
