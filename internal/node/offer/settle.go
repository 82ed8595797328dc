package offer

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// namedHolders is how many holders are named in a reason.
const namedHolders = 3

// Settle returns the units in force: the wanted ones, except for devices that are still held in another use. Its only
// state is applied, the units that were in force before; a second call with its result returns the same.
//
//   - A device that keeps its resource and mode gets its wanted use at once, even while it is held: the number of
//     replicas and the limits apply only to the next containers.
//   - A device whose resource or mode changes, or that is no longer wanted, keeps its applied use and drains as long as
//     it has holders. So does a GPU that is to be advertised by its MIG devices, and a MIG device whose GPU is to be
//     advertised as a whole.
//   - A wanted unit that overlaps such a device is not in force yet.
//   - A GPU in pending (with the reason as a sentence), or whose MIG mode is unknown, keeps its applied units, which
//     drain whether they are held or not. Units that were not in force are not advertised.
//   - Devices that are no longer in the snapshot are dropped.
//
// holders returns the names, such as "default/train-0", of all holders of the key's device or of a part or replica of
// it. Without applied units, as at the first start, the wanted units are in force at once.
func Settle(snapshot *gpu.Snapshot, wanted, applied []Unit, holders func(gpu.DeviceKey) []string, pending map[gpu.UUID]string) []Unit {
	gpus := listNamed(snapshot, ignoreUnnamed)
	var settled []Unit
	for i := range gpus {
		c := &gpus[i]
		want, have := c.unitsOf(wanted), c.unitsOf(applied)
		var inForce []Unit
		reason, due := pending[c.UUID]
		if c.MIG.Unknown && !due {
			reason, due = "the driver has not reported yet whether the GPU is partitioned", true
		}
		if due {
			inForce = drain(have, reason)
		} else {
			inForce = settleGPU(want, have, holders)
		}
		settled = append(settled, c.unitsOf(inForce)...)
	}
	return settled
}

// drain returns the units as draining; of units that overlap, only the first.
func drain(have []Unit, reason string) []Unit {
	var kept []Unit
	for _, unit := range have {
		if !overlapsAny(unit.Key, kept) {
			unit.Draining = reason
			kept = append(kept, unit)
		}
	}
	return kept
}

// settleGPU settles the units of one GPU.
func settleGPU(want, have []Unit, holders func(gpu.DeviceKey) []string) []Unit {
	var inForce []Unit
	for _, unit := range have {
		next := overlapping(unit.Key, want)
		if len(next) > 0 && next[0].Key == unit.Key && changesInUse(next[0].Use, unit.Use) || overlapsAny(unit.Key, inForce) {
			continue
		}
		if held := unique(holders(unit.Key)); len(held) > 0 {
			unit.Draining = fmt.Sprintf("waits for %s to end, then %s", firstNames(held), becomes(next))
			inForce = append(inForce, unit)
		}
	}
	for _, unit := range want {
		if !overlapsAny(unit.Key, inForce) {
			inForce = append(inForce, unit)
		}
	}
	return inForce
}

// changesInUse reports whether one use can change to the other while the device is held. An MPS daemon has to be
// restarted to serve one user instead of several, which would end its clients.
func changesInUse(a, b Use) bool {
	return a.API == b.API && a.Resource == b.Resource && a.Mode == b.Mode && a.SingleUser == b.SingleUser
}

func overlapsAny(key gpu.DeviceKey, units []Unit) bool {
	return slices.ContainsFunc(units, func(u Unit) bool { return key.Overlaps(u.Key) })
}

func overlapping(key gpu.DeviceKey, units []Unit) []Unit {
	var some []Unit
	for _, unit := range units {
		if key.Overlaps(unit.Key) {
			some = append(some, unit)
		}
	}
	return some
}

// firstNames joins the first few names of a list: "a, b, c and 4 others".
func firstNames(names []string) string {
	if len(names) > namedHolders {
		others := len(names) - namedHolders
		names = append(slices.Clone(names[:namedHolders]), fmt.Sprintf("%d others", others))
		if others == 1 {
			names[namedHolders] = "1 other"
		}
	}
	return phrase.And(names)
}

// becomes describes the next use of a device.
func becomes(next []Unit) string {
	if len(next) == 0 {
		return "is offered no longer"
	}
	var kinds []string
	count := map[string]int{}
	for _, unit := range next {
		kind := unit.Use.String()
		if count[kind]++; count[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		if count[kind] > 1 {
			kinds[i] = fmt.Sprintf("%d devices %s", count[kind], kind)
		}
	}
	return "becomes " + phrase.And(kinds)
}
