package offer

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Recover computes the units that were in force from the devices that are held, when the record of them is lost. Passed
// to Settle as applied, they keep each device unchanged until it is released. Devices that are not held need no record.
//
// A whole GPU with replicas is of mode Unknown: the device IDs do not distinguish time-slicing from MPS. Resource is
// used for a device whose resource is unknown. A device that is held before it exists was never in force.
func Recover(held []gpu.Holding, resource string) []Unit {
	held = slices.Clone(held)
	slices.SortFunc(held, func(a, b gpu.Holding) int {
		return cmp.Or(gpu.CompareKeys(a.Key, b.Key), cmp.Compare(a.Holder.Resource, b.Holder.Resource))
	})
	var units []Unit
	for _, h := range held {
		if h.Key.Placement.Known() {
			continue
		}
		share, key := h.Key.Share, h.Key.Unshared()
		at := slices.IndexFunc(units, func(u Unit) bool { return u.Key == key })
		if at < 0 {
			at = len(units)
			units = append(units, Unit{Key: key})
		}
		use := &units[at].Use
		use.Resource = cmp.Or(use.Resource, h.Holder.Resource)
		if h.Holder.Kind == gpu.HolderClaim {
			use.API = DRA
		}
		if share == 0 {
			continue
		}
		use.Mode, use.Replicas = TimeSlicing, max(use.Replicas, share)
		if key.MIG == "" {
			use.Mode = Unknown
		}
	}
	for i := range units {
		units[i].Use.Resource = cmp.Or(units[i].Use.Resource, resource, DefaultResource)
	}
	return units
}
