package gpunodes_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpunodes"
)

func TestKeep(t *testing.T) {
	gate := &v1alpha1.GateStatus{State: v1alpha1.GateHeld, Mode: v1alpha1.GateEnforce, TaintKey: "key", Code: "CODE", Message: "message", Key: "1"}
	gpu := &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu", Sharing: "mps", Replicas: 4, API: "dra", RefusesMany: true, Draining: "why"}
	pod := []v1alpha1.Holder{{Kind: "Pod", Namespace: "secret", Pod: "a"}, {Kind: "Pod", Namespace: "secret", Pod: "b"}}
	full := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "berth-agent"}}}, Status: v1alpha1.GPUNodeStatus{AgentVersion: "1", Gate: gate, Topology: []string{"X"},
		Driver: v1alpha1.GPUDriver{Version: "615.1", CUDAVersion: "14.0"}, Summary: v1alpha1.GPUSummary{GPUs: 2, Held: 1, Model: "A"},
		Devices: []v1alpha1.GPUDevice{
			{UUID: "GPU-0", Product: "A", Health: v1alpha1.DeviceHealth{State: "Degraded", Causes: []v1alpha1.Cause{{Code: "C"}}}, Offered: gpu, Holders: pod, Excluded: true},
			{UUID: "GPU-1", Product: "A", MIGEnabled: true, MIGDevices: []v1alpha1.MIGDevice{{UUID: "MIG-0", Health: &v1alpha1.DeviceHealth{State: "Gone", Recovery: "x"},
				Offered: gpu, Holders: pod}, {}}, MIGProfiles: []v1alpha1.MIGProfile{{Name: "1g.5gb", Max: 7}}},
		}}}
	want := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid", ResourceVersion: "7"}, Status: v1alpha1.GPUNodeStatus{Gate: gate,
		Driver: v1alpha1.GPUDriver{Version: "615.1"}, Summary: v1alpha1.GPUSummary{GPUs: 2, Model: "A"}, Devices: []v1alpha1.GPUDevice{
			{Product: "A", Health: v1alpha1.DeviceHealth{State: "Degraded"}, Offered: gpu, Holders: []v1alpha1.Holder{{}}, Excluded: true},
			{Product: "A", MIGEnabled: true, MIGDevices: []v1alpha1.MIGDevice{{Health: &v1alpha1.DeviceHealth{State: "Gone"}, Offered: gpu, Holders: []v1alpha1.Holder{{}}}, {}},
				MIGProfiles: []v1alpha1.MIGProfile{{Name: "1g.5gb"}}},
		}}}
	got, err := gpunodes.Keep(full)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other := &corev1.Pod{}
	if got, err := gpunodes.Keep(other); got != any(other) || err != nil {
		t.Errorf("another object became %v, %v", got, err)
	}
}
