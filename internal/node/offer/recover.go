package offer

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Recover computes the units that must have been in force when their record is lost, from the devices that are held.
// Passed to Settle as applied, they keep each device as it is until its holders have gone. Devices that nobody holds
// need no record.
//
// A whole GPU with replicas is of mode Unknown: the names of the devices do not tell time slicing from MPS. Resource
// names a device whose resource is not known.
func Recover(held []gpu.Holding, resource string) []Unit {
	held = slices.Clone(held)
	slices.SortFunc(held, func(a, b gpu.Holding) int {
		return cmp.Or(gpu.CompareKeys(a.Key, b.Key), cmp.Compare(a.Holder.Resource, b.Holder.Resource))
	})
	var units []Unit
	for _, h := range held {
		share, key := h.Key.Share, h.Key.Unshared()
		at := slices.IndexFunc(units, func(u Unit) bool { return u.Key == key })
		if at < 0 {
			at = len(units)
			units = append(units, Unit{Key: key})
		}
		use := &units[at].Use
		use.Resource = cmp.Or(use.Resource, h.Holder.Resource)
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
