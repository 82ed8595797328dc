package mig

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// slots returns the slots of placements that the GPU has.
func (t *table) slots(placed []Placed) []slot {
	slots := make([]slot, 0, len(placed))
	for _, one := range placed {
		if at, ok := t.at(one); ok {
			slots = append(slots, at)
		}
	}
	return slots
}

// at returns the slot of a placement, or false when the GPU does not have it.
func (t *table) at(one Placed) (slot, bool) {
	s := t.find(one.Profile)
	if s < 0 || t.shapes[s].Size != one.Size {
		return slot{}, false
	}
	p := slices.IndexFunc(t.shapes[s].places, func(p place) bool { return p.start == one.Start })
	return slot{s, p}, p >= 0
}

// refusePlaced is refusal for exact placements.
func (t *table) refusePlaced(g *GPU, wanted *Wanted) string {
	if len(wanted.Devices) > 0 {
		return "devices are wanted both by number and by placement; use one of the two"
	}
	counts := make([]int, len(t.shapes))
	var used uint64
	for i, one := range wanted.Placed {
		if t.find(one.Profile) < 0 {
			return t.unknown(g, one.Profile)
		}
		at, ok := t.at(one)
		if !ok {
			return fmt.Sprintf("%s, of %d memory slices: %s; use one of these placements", one, one.Size, t.starts(t.counts(map[string]int{one.Profile: 1})))
		}
		mask := t.shapes[at.shape].places[at.place].mask
		if used&mask != 0 {
			return fmt.Sprintf("%s shares memory slices with another wanted device (%s); leave one of them out", one, places(wanted.Placed[:i]))
		}
		used |= mask
		counts[at.shape]++
	}
	return t.tooMuch(counts)
}

// String returns the profile and the first memory slice: "1g.10gb at 4".
func (p Placed) String() string { return fmt.Sprintf("%s at %d", p.Profile, p.Start) }

// places lists placements: "3g.40gb at 4 and 1g.10gb at 0".
func places(placed []Placed) string {
	parts := make([]string, 0, len(placed))
	for _, one := range placed {
		parts = append(parts, one.String())
	}
	return phrase.And(parts)
}
