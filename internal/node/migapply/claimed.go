package migapply

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// Claimed returns the state of a dynamic GPU that follows from the holdings: a MIG device at each placement that is held, MIG
// off while a claim has the whole GPU, and no MIG devices while nothing is held. It returns false for a GPU that stays as it is:
// a pod has it, as before the GPU was dynamic, or somebody has set another mode, which waits for a reset.
func Claimed(device *gpu.GPU, held []ledger.Holding) (mig.Wanted, bool) {
	wanted := mig.Wanted{Enabled: device.MIG.Enabled}
	free := true
	for i := range held {
		h := &held[i]
		if h.Key.GPU != device.UUID || h.Holder.Kind == gpu.HolderMaintenance {
			continue
		}
		free = false
		if !h.Key.Whole() {
			if placed, known := placedOf(device, h); known && !slices.Contains(wanted.Placed, placed) {
				wanted.Placed = append(wanted.Placed, placed)
			}
			wanted.Enabled = true
			continue
		}
		if h.Holder.Kind != gpu.HolderClaim {
			return mig.Wanted{}, false
		}
		wanted.Enabled = false
	}
	if device.MIG.ModeNeedsReset {
		if free && device.MIG.PendingEnabled != device.MIG.Enabled {
			return mig.Wanted{}, false
		}
		wanted.Enabled = device.MIG.Enabled
	}
	if !wanted.Enabled {
		wanted.Placed = nil
	}
	slices.SortFunc(wanted.Placed, func(a, b mig.Placed) int { return a.Start - b.Start })
	return wanted, true
}

// placedOf returns the profile and the placement of a held MIG device: those of the device while it exists, otherwise those
// that the ledger has.
func placedOf(device *gpu.GPU, h *ledger.Holding) (mig.Placed, bool) {
	for _, part := range device.MIG.Devices {
		if part.UUID == h.Key.MIG && h.Key.MIG != "" {
			return mig.Placed{Profile: part.Profile, Start: part.Start, Size: part.Size}, true
		}
	}
	at := h.Key.Placement
	if h.Key.MIG != "" {
		at = h.Placement
	}
	return mig.Placed{Profile: h.Profile, Start: at.Start, Size: at.Size}, h.Profile != "" && at.Known()
}

// Has returns the UUID of a device of a dynamic GPU, when the GPU has it: the MIG device of a profile at the placement of a key, or the
// GPU itself while MIG is off; else an empty one. device is the GPU as of the last scan.
func (s *Status) Has(device *gpu.GPU, key gpu.DeviceKey, profile string) gpu.UUID {
	if key.Whole() {
		if s.State == Applied && !device.MIG.Enabled {
			return key.GPU
		}
		return ""
	}
	for _, kept := range s.Plan.Keep {
		if kept.Profile == profile && key.Placement == (gpu.Placement{Start: kept.Start, Size: kept.Size}) {
			return kept.UUID
		}
	}
	return ""
}
