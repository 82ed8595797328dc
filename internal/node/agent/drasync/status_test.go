package drasync

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/claimstatus"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestClaimedOf: the devices of claims are listed by claim, MIG devices with their GPU; a placement without a MIG device and a device that
// is not known are left out, and other holders are no claims.
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
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}}
	pci := snapshot.GPUs[0].PCI.String()
	got := claimedOf([]ledger.Holding{
		holding(gpu.HolderClaim, "1", whole), holding(gpu.HolderClaim, "2", static), holding(gpu.HolderClaim, "1", pending), holding(gpu.HolderClaim, "1", made),
		holding(gpu.HolderPod, "", gpu.DeviceKey{GPU: "GPU-d"}), holding(gpu.HolderClaim, "3", gpu.DeviceKey{GPU: "GPU-d"}),
	}, snapshot, "n", devices)
	want := []claimstatus.Claim{
		{UID: "1", Namespace: "ml", Name: "claim-1", Devices: []claimstatus.Device{
			{Pool: "n", Name: "a", UUID: "GPU-a", PCI: pci, Health: gpu.Unhealthy, Reason: "XID 79", Since: at},
			{Pool: "n", Name: "c-4", UUID: "MIG-c", Parent: "GPU-c", Profile: "1g.10gb", PCI: pci, Since: at},
		}},
		{UID: "2", Namespace: "ml", Name: "claim-2", Devices: []claimstatus.Device{
			{Pool: "n", Name: "b", UUID: "MIG-b", Parent: "GPU-b", Profile: "1g.10gb", PCI: pci, Health: gpu.Healthy, Since: at},
		}},
		{UID: "3", Namespace: "ml", Name: "claim-3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	claimedOf([]ledger.Holding{holding(gpu.HolderPod, "", whole)}, snapshot, "n", devices)
	if calls != 1 {
		t.Errorf("the devices were computed %d times, want once: without a claim they are not needed", calls)
	}
}
