package offer

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestUnknownPartition checks that a GPU whose MIG mode is unknown is not advertised, and that its applied use is kept
// for its holders.
func TestUnknownPartition(t *testing.T) {
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{
		{UUID: "GPU-0", MIG: gpu.MIG{Unsure: true, Unknown: true}},
		{UUID: "GPU-1", Index: 1},
	}}
	wanted, _ := Resolve(snapshot, Settings{})
	if len(wanted) != 1 || wanted[0].Key.GPU != "GPU-1" {
		t.Errorf("wanted %+v; want GPU-1 alone", wanted)
	}
	offers := Build(snapshot, Settle(snapshot, wanted, nil, func(gpu.DeviceKey) []string { return nil }, nil))
	if len(offers) != 1 || len(offers[0].Devices) != 1 {
		t.Errorf("offered %+v; want GPU-1 alone", offers)
	}
	snapshot.GPUs[0].MIG = gpu.MIG{}
	applied, _ := Resolve(snapshot, Settings{})
	snapshot.GPUs[0].MIG = gpu.MIG{Unsure: true, Unknown: true}
	offers = Build(snapshot, Settle(snapshot, wanted, applied, func(gpu.DeviceKey) []string { return nil }, nil))
	if len(offers) != 1 || len(offers[0].Devices) != 2 || offers[0].Devices[0].Health != gpu.Draining || offers[0].Devices[1].Health != gpu.Healthy {
		t.Errorf("offered %+v; want GPU-0 draining, GPU-1 healthy", offers)
	}
}
