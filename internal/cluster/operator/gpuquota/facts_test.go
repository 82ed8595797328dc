package gpuquota

import (
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestSameNames: health, holders and the gate of a node wake no controller of quotas, names and models do.
func TestSameNames(t *testing.T) {
	node := func() *v1alpha1.GPUNode {
		return &v1alpha1.GPUNode{Status: v1alpha1.GPUNodeStatus{Devices: []v1alpha1.GPUDevice{{Product: "A", Offered: &v1alpha1.DeviceOffer{Resource: "a/gpu"},
			MIGDevices: []v1alpha1.MIGDevice{{Offered: &v1alpha1.DeviceOffer{Resource: "a/mig"}}, {}}, MIGProfiles: []v1alpha1.MIGProfile{{Name: "1g"}}}}}}
	}
	tests := map[string]struct {
		change func(*v1alpha1.GPUNode)
		same   bool
	}{
		"nothing":           {func(*v1alpha1.GPUNode) {}, true},
		"health":            {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Health.State = "Gone" }, true},
		"holders":           {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Holders = make([]v1alpha1.Holder, 1) }, true},
		"draining":          {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Offered.Draining = "why" }, true},
		"the gate":          {func(n *v1alpha1.GPUNode) { n.Status.Gate = &v1alpha1.GateStatus{} }, true},
		"the model":         {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Product = "B" }, false},
		"excluded":          {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Excluded = true }, false},
		"the name":          {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Offered.Resource = "b/gpu" }, false},
		"not advertised":    {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Offered = nil }, false},
		"sharing":           {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].MIGDevices[0].Offered.Sharing = "mps" }, false},
		"one more":          {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].MIGDevices[1].Offered = &v1alpha1.DeviceOffer{} }, false},
		"a profile":         {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].MIGProfiles[0].Name = "2g" }, false},
		"one device less":   {func(n *v1alpha1.GPUNode) { n.Status.Devices = nil }, false},
		"a MIG device less": {func(n *v1alpha1.GPUNode) { n.Status.Devices[0].MIGDevices = n.Status.Devices[0].MIGDevices[:1] }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			after := node()
			tc.change(after)
			if got := sameNames(node(), after); got != tc.same {
				t.Errorf("sameNames = %v, want %v", got, tc.same)
			}
		})
	}
}
