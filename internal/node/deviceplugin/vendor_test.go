package deviceplugin

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestVendorWithoutRuntime: an answer with devices of another vendor has its own device nodes, and nothing of NVIDIA's runtime.
func TestVendorWithoutRuntime(t *testing.T) {
	h := machine(2)
	for i := range h.snapshot.GPUs {
		h.snapshot.GPUs[i].Vendor = "other"
	}
	h.snapshot.GPUs[0].Nodes = []gpu.DeviceNode{{Path: "/dev/other0"}}
	h.snapshot.Vendors = append(h.snapshot.Vendors, gpu.VendorState{Name: "other", Shared: []gpu.DeviceNode{{Path: "/dev/otherctl"}}})
	w := &viewer{vendors: testVendors(), strategy: Strategy{
		List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}, ID: v1alpha1.IDStrategyUUID, PassDeviceSpecs: true,
	}}
	features := Features{GDS: true, GDRCopy: true, MOFED: true, IMEXChannels: []int{0}}
	v := w.build(offer.Offer{Resource: "other.example/gpu", Devices: h.State().Offers[0].Devices}, State{Snapshot: &h.snapshot, Features: features}, nil, nil, time.Time{})
	answer := received(t, w.answer(v, []int{0}))
	var nodes []string
	for _, spec := range answer.Devices {
		nodes = append(nodes, spec.ContainerPath)
	}
	if len(answer.Envs)+len(answer.Mounts) != 0 || len(nodes) != 2 || nodes[0] != "/dev/otherctl" || nodes[1] != "/dev/other0" {
		t.Errorf("answer has the variables %v, the mounts %v and the nodes %v", answer.Envs, answer.Mounts, nodes)
	}
	// While no GPU of the resource is in the snapshot, its vendor is still known.
	gone := w.build(offer.Offer{Resource: "other.example/gpu"}, State{Snapshot: &gpu.Snapshot{}}, nil, v, time.Time{})
	if gone.traits.Name != "other" {
		t.Errorf("the vendor is forgotten: %q", gone.traits.Name)
	}
}
