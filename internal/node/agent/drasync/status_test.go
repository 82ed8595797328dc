package drasync

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestClaimedOf: the devices of claims are listed by claim, MIG devices with their GPU; a placement without a MIG device and a device that
// is not known are left out, and other holders are no claims. While the driver answers, a device whose GPU is not there is Gone.
func TestClaimedOf(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	holding := func(kind gpu.HolderKind, id string, key gpu.DeviceKey) ledger.Holding {
		return ledger.Holding{Holding: gpu.Holding{Key: key, Since: at, Holder: gpu.Holder{Kind: kind, ID: id, Namespace: "ml", Name: "claim-" + id}}}
	}
	whole, static := gpu.DeviceKey{GPU: "GPU-a"}, gpu.DeviceKey{GPU: "GPU-b", MIG: "MIG-b"}
	dynamic, made := gpu.Placed("GPU-c", gpu.Placement{Start: 4, Size: 1}), gpu.DeviceKey{GPU: "GPU-c", MIG: "MIG-c"}
	pending := gpu.Placed("GPU-c", gpu.Placement{Start: 0, Size: 4})
	calls := 0
	devices := func() []dra.Device {
		calls++
		return []dra.Device{
			{Name: "a", Key: whole, Health: gpu.Unhealthy, Reason: "XID 79"}, {Name: "b", Key: static, Profile: "1g.10gb", Health: gpu.Healthy},
			{Name: "c-4", Key: dynamic, UUID: "MIG-c", Profile: "1g.10gb", Dynamic: true}, {Name: "c-0", Key: pending, Profile: "4g.40gb", Dynamic: true},
		}
	}
	removed := ledger.Holding{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-d", MIG: "MIG-d"}, Since: at, Profile: "1g.10gb",
		Placement: gpu.Placement{Start: 4, Size: 1}, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "3", Namespace: "ml", Name: "claim-3"}}}
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}}
	pci := snapshot.GPUs[0].PCI.String()
	holdings := []ledger.Holding{
		holding(gpu.HolderClaim, "1", whole), holding(gpu.HolderClaim, "2", static), holding(gpu.HolderClaim, "1", pending), holding(gpu.HolderClaim, "1", made),
		holding(gpu.HolderPod, "", gpu.DeviceKey{GPU: "GPU-d"}), holding(gpu.HolderClaim, "3", gpu.DeviceKey{GPU: "GPU-d"}),
		removed, holding(gpu.HolderClaim, "3", gpu.Placed("GPU-d", gpu.Placement{Start: 0, Size: 4})),
	}
	got := claimedOf(holdings, snapshot, "n", devices)
	want := []dra.StatusClaim{
		{UID: "1", Namespace: "ml", Name: "claim-1", Devices: []dra.StatusDevice{
			{Pool: "n", Name: "a", UUID: "GPU-a", PCI: pci, Health: gpu.Unhealthy, Reason: "XID 79", Since: at},
			{Pool: "n", Name: "c-4", UUID: "MIG-c", Parent: "GPU-c", Profile: "1g.10gb", PCI: pci, Since: at},
		}},
		{UID: "2", Namespace: "ml", Name: "claim-2", Devices: []dra.StatusDevice{
			{Pool: "n", Name: "b", UUID: "MIG-b", Parent: "GPU-b", Profile: "1g.10gb", PCI: pci, Health: gpu.Healthy, Since: at},
		}},
		{UID: "3", Namespace: "ml", Name: "claim-3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	claimedOf([]ledger.Holding{holding(gpu.HolderPod, "", whole)}, snapshot, "n", devices)
	const gone = "GPU GPU-d is not on this node any more: it was removed, or the driver does not list it; delete the pods of the claim, and the claim, to get another GPU"
	want[2].Devices = []dra.StatusDevice{
		{Pool: "n", Name: "gpu-d", UUID: "GPU-d", Health: gpu.Gone, Reason: gone, Since: at},
		{Pool: "n", Name: "gpu-d-1g10gb-4", UUID: "MIG-d", Parent: "GPU-d", Profile: "1g.10gb", Health: gpu.Gone, Reason: gone, Since: at},
		{Pool: "n", UUID: "GPU-d", Parent: "GPU-d", Health: gpu.Gone, Reason: gone, Since: at},
	}
	snapshot.Vendors = []gpu.VendorState{{Driver: gpu.Driver{Version: "580.95.05"}}}
	if diff := cmp.Diff(want, claimedOf(holdings, snapshot, "n", devices)); diff != "" {
		t.Errorf("claims while the driver answers (-want +got):\n%s", diff)
	}
	if calls != 2 {
		t.Errorf("the devices were computed %d times, want twice: without a claim they are not needed", calls)
	}
}
