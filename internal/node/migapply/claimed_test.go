package migapply

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

func holds(kind gpu.HolderKind, key gpu.DeviceKey, profile string, at gpu.Placement) ledger.Holding {
	return ledger.Holding{Holding: gpu.Holding{Key: key, Holder: gpu.Holder{Kind: kind, ID: "x"}, Profile: profile, Placement: at}}
}

func TestClaimed(t *testing.T) {
	at := func(start, size int) gpu.Placement { return gpu.Placement{Start: start, Size: size} }
	placed := func(profile string, start, size int) mig.Placed {
		return mig.Placed{Profile: profile, Start: start, Size: size}
	}
	whole := gpu.DeviceKey{GPU: "GPU-0"}
	exists := gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-1"}
	on := gpu.MIG{Capable: true, Enabled: true, PendingEnabled: true, Devices: []gpu.MIGDevice{
		{Partition: gpu.Partition{UUID: "MIG-1", Profile: "3g.40gb"}, Start: 4, Size: 4},
	}}
	off, resets, changing := gpu.MIG{Capable: true}, on, gpu.MIG{Capable: true, ModeNeedsReset: true, PendingEnabled: true}
	resets.ModeNeedsReset = true
	tests := map[string]struct {
		mig    gpu.MIG
		held   []ledger.Holding
		want   mig.Wanted
		leaves bool
	}{
		"nothing, off": {mig: off},
		"nothing, on":  {mig: on, want: mig.Wanted{Enabled: true}},
		"placements": {
			mig: off, held: []ledger.Holding{
				holds(gpu.HolderClaim, gpu.Placed("GPU-0", at(4, 2)), "2g.20gb", at(0, 0)),
				holds(gpu.HolderClaim, gpu.Placed("GPU-0", at(0, 1)), "1g.10gb+me", at(0, 0)),
				holds(gpu.HolderClaim, gpu.Placed("GPU-1", at(1, 1)), "1g.10gb", at(0, 0)),
			},
			want: mig.Wanted{Enabled: true, Placed: []mig.Placed{placed("1g.10gb+me", 0, 1), placed("2g.20gb", 4, 2)}},
		},
		"a MIG device that exists": {
			mig: on, held: []ledger.Holding{holds(gpu.HolderClaim, exists, "", at(0, 0))},
			want: mig.Wanted{Enabled: true, Placed: []mig.Placed{placed("3g.40gb", 4, 4)}},
		},
		"held by its UUID and its placement": {
			mig: on, held: []ledger.Holding{
				holds(gpu.HolderClaim, exists, "3g.40gb", at(4, 4)), holds(gpu.HolderClaim, gpu.Placed("GPU-0", at(4, 4)), "3g.40gb", at(0, 0)),
			},
			want: mig.Wanted{Enabled: true, Placed: []mig.Placed{placed("3g.40gb", 4, 4)}},
		},
		"a MIG device that a reset removed": {
			mig: off, held: []ledger.Holding{holds(gpu.HolderClaim, exists, "3g.40gb", at(4, 4))},
			want: mig.Wanted{Enabled: true, Placed: []mig.Placed{placed("3g.40gb", 4, 4)}},
		},
		"a MIG device of an orphan": {
			mig: on, held: []ledger.Holding{holds(gpu.HolderOrphan, exists, "", at(0, 0))},
			want: mig.Wanted{Enabled: true, Placed: []mig.Placed{placed("3g.40gb", 4, 4)}},
		},
		"the whole GPU":            {mig: on, held: []ledger.Holding{holds(gpu.HolderClaim, whole, "", at(0, 0))}},
		"the whole GPU, by a pod":  {mig: off, held: []ledger.Holding{holds(gpu.HolderPod, whole, "", at(0, 0))}, leaves: true},
		"maintenance":              {mig: on, held: []ledger.Holding{holds(gpu.HolderMaintenance, whole, "", at(0, 0))}, want: mig.Wanted{Enabled: true}},
		"a mode that takes resets": {mig: resets, held: []ledger.Holding{holds(gpu.HolderClaim, whole, "", at(0, 0))}, want: mig.Wanted{Enabled: true}},
		"a placement while a mode that takes resets is off": {
			mig: gpu.MIG{Capable: true, ModeNeedsReset: true}, held: []ledger.Holding{holds(gpu.HolderClaim, gpu.Placed("GPU-0", at(4, 2)), "2g.20gb", at(0, 0))},
		},
		"a mode that somebody has set, before the reset": {mig: changing, leaves: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := Claimed(&gpu.GPU{UUID: "GPU-0", MIG: test.mig}, test.held)
			if ok == test.leaves {
				t.Errorf("the GPU is changed: %v", ok)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
