package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

const (
	driver = "gpu.berth.dev"
	class  = "gpu.berth.dev"
)

// published returns the ResourceSlice of a node with four GPUs, and its GPUNode.
func published(node, topology string, states []string) (*resourceapi.ResourceSlice, *v1alpha1.GPUNode) {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node, ResourceVersion: "1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: new(node), Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	report := makeGPUNode(node, topology, states, nil)
	for i := range report.Status.Devices {
		d := &report.Status.Devices[i]
		d.Offered = &v1alpha1.DeviceOffer{API: "dra"}
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: new("gpu")}, "uuid": {StringValue: new(d.UUID)}, "pair": {IntValue: new(int64(i / 2))},
		}})
	}
	return slice, report
}

// claim creates a claim and returns a pod that uses it.
func (l *lab) claim(t *testing.T, name string, count int64, constraints ...resourceapi.DeviceConstraint) *corev1.Pod {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("claim-" + name), ResourceVersion: "1"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}}
	claim.Spec.Devices.Constraints = constraints
	if _, err := l.client.ResourceV1().ResourceClaims("ml").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := makePod(name, 0, 1)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new(name)}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
	return pod
}

// TestClaims: with claims, too, a pod goes to the node whose GPUs the allocator takes there are the better ones.
func TestClaims(t *testing.T) {
	samePair := resourceapi.DeviceConstraint{MatchAttribute: new(resourceapi.FullyQualifiedName(driver + "/pair"))}
	degraded := []string{"Degraded", "Healthy", "Healthy", "Healthy"}
	tests := map[string]struct {
		topologies []string
		states     [][]string
		before     []int64 // claims before, all of which go where the policy wants them
		count      int64
		constraint []resourceapi.DeviceConstraint
		want       string
	}{
		"NVLinks before PCIe":                           {topologies: []string{"pcie", "nvlink"}, count: 2, want: "n1"},
		"the allocator would take a degraded GPU first": {topologies: []string{"nvlink", "pcie"}, states: [][]string{degraded, healthy}, count: 1, want: "n1"},
		"a pair":           {topologies: []string{"pcie", "nvlink"}, count: 2, constraint: []resourceapi.DeviceConstraint{samePair}, want: "n1"},
		"only one has all": {topologies: []string{"pcie", "pcie"}, before: []int64{1}, count: 4, want: "the other"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			// The scheduler has all slices from its start: a pod would go to the node of the first that it sees.
			objects := []runtime.Object{makeNode("n0"), makeNode("n1"), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}}
			var reports []*v1alpha1.GPUNode
			for i, topology := range test.topologies {
				states := healthy
				if test.states != nil {
					states = test.states[i]
				}
				slice, report := published(fmt.Sprintf("n%d", i), topology, states)
				objects, reports = append(objects, slice), append(reports, report)
			}
			l := startLab(t, fleet.PolicyPack, objects...)
			for _, report := range reports {
				l.report(report)
			}
			first := ""
			for i, count := range test.before {
				first = l.schedule(t, l.claim(t, fmt.Sprintf("before-%d", i), count))
			}
			want := test.want
			if want == "the other" {
				want = map[string]string{"n0": "n1", "n1": "n0"}[first]
			}
			if got := l.schedule(t, l.claim(t, "claim", test.count, test.constraint...)); got != want {
				t.Errorf("the pod went to %s; want %s", got, want)
			}
		})
	}
}
