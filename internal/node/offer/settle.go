package offer

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// namedHolders is how many of those that a device waits for are named.
const namedHolders = 3

// Settle says which units are in force: the wanted ones, but for devices that somebody still
// holds as something else. It needs no memory but applied, which are the units that were in
// force so far, and asked again it gives the same.
//
//   - A device with the same resource and mode as so far gets its wanted use at once, also
//     while it is held: the number of replicas and the limits concern only whoever comes next.
//   - A device whose resource or mode changes, or which is wanted no longer, keeps its applied
//     use as long as holders names anybody, and is draining. So does a GPU that is to be
//     offered by its MIG devices, and a MIG device whose GPU is to be offered whole.
//   - What is wanted on silicon that such a device occupies is not in force yet.
//   - A GPU in pending, with the reason as a sentence, or of which nobody knows whether it is partitioned, keeps its applied units, draining,
//     whether anybody holds them or not. What was not in force is not offered.
//   - What is no longer in the snapshot is dropped.
//
// holders names, as phrases such as "default/train-0", everybody who holds the device of the
// key, or a part or share of it. With nothing applied, as at the first start, the wanted
// units are in force at once.
func Settle(snapshot *gpu.Snapshot, wanted, applied []Unit, holders func(gpu.DeviceKey) []string, pending map[gpu.UUID]string) []Unit {
	cards := survey(snapshot, unheard)
	var settled []Unit
	for i := range cards {
		c := &cards[i]
		want, have := c.unitsOf(wanted), c.unitsOf(applied)
		var inForce []Unit
		reason, due := pending[c.UUID]
		if c.MIG.Unknown && !due {
			reason, due = "the driver has not said yet whether the GPU is partitioned", true
		}
		if due {
			inForce = drain(have, reason)
		} else {
			inForce = settleCard(want, have, holders)
		}
		settled = append(settled, c.unitsOf(inForce)...)
	}
	return settled
}

// drain keeps units as they are, but of those that overlap the first.
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

// settleCard settles the units of one card.
func settleCard(want, have []Unit, holders func(gpu.DeviceKey) []string) []Unit {
	var inForce []Unit
	for _, unit := range have {
		next := overlapping(unit.Key, want)
		if len(next) > 0 && next[0].Key == unit.Key && alike(next[0].Use, unit.Use) || overlapsAny(unit.Key, inForce) {
			continue
		}
		if held := unique(holders(unit.Key)); len(held) > 0 {
			unit.Draining = fmt.Sprintf("waits for %s to end, then %s", people(held), becomes(next))
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

// alike tells whether one use can become the other while the device is held. An MPS daemon has
// to start anew to serve one user instead of several, which would end its clients.
func alike(a, b Use) bool {
	return a.Resource == b.Resource && a.Mode == b.Mode && a.SingleUser == b.SingleUser
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

// people names the first few of a list: "a, b, c and 4 others".
func people(names []string) string {
	if len(names) > namedHolders {
		others := len(names) - namedHolders
		names = append(slices.Clone(names[:namedHolders]), fmt.Sprintf("%d others", others))
		if others == 1 {
			names[namedHolders] = "1 other"
		}
	}
	return and(names)
}

// and joins names: "a, b and c".
func and(names []string) string {
	if len(names) < 2 {
		return list(names)
	}
	last := len(names) - 1
	return list(names[:last]) + " and " + names[last]
}

// becomes says what is made of a device's silicon.
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
	return "becomes " + and(kinds)
}
