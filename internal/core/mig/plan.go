package mig

import (
	"cmp"
	"slices"
)

// PlanGPU computes what happens to one card, by the goals of the package comment. Turning MIG
// off destroys every instance; a change of the mode waits for every holder of the card.
func PlanGPU(card GPU, wanted Wanted) GPUPlan {
	plan := GPUPlan{UUID: card.UUID, Index: card.Index, Wanted: wanted}
	t := newTable(&card.Geometry)
	if card.Capable && !card.Enabled && wanted.Enabled && len(wanted.Devices) > 0 && len(t.shapes) == 0 {
		plan.Unplanned = true
		wanted.Devices = nil
	}
	if plan.Refused = refusal(t, &card, wanted); plan.Refused != "" {
		return plan
	}
	if card.Enabled != wanted.Enabled {
		plan.SetMode, plan.Reset = &wanted.Enabled, card.ModeNeedsReset
	}
	var instances []Instance
	if card.Enabled {
		instances = card.Instances // with MIG off there are none
	}
	best, _ := arrange(t, instances, t.counts(wanted.Devices)) // what does not fit was refused
	for i, kept := range best.kept {
		if kept {
			plan.Keep = append(plan.Keep, instances[i])
		} else {
			plan.Destroy = append(plan.Destroy, instances[i])
		}
	}
	for _, at := range best.create {
		s := &t.shapes[at.shape]
		plan.Create = append(plan.Create, Placed{Profile: s.Name, Start: s.places[at.place].start, Size: s.Size})
	}
	slices.SortStableFunc(plan.Keep, compareInstances)
	slices.SortStableFunc(plan.Destroy, compareInstances)
	slices.SortFunc(plan.Create, func(a, b Placed) int { return a.Start - b.Start })
	plan.Blockers = blockers(&card, &plan)
	return plan
}

func compareInstances(a, b Instance) int { return cmp.Or(a.Start-b.Start, a.GI-b.GI) }

// blockers are the holders that a plan takes something from. Who holds a whole card with MIG
// on may use any of its devices.
func blockers(card *GPU, plan *GPUPlan) []Blocker {
	var all []Blocker
	device := func(one Instance) bool { return one.UUID != "" }
	if len(card.Holders) > 0 && (plan.SetMode != nil || slices.ContainsFunc(plan.Destroy, device)) {
		all = append(all, Blocker{Holders: card.Holders})
	}
	for _, one := range plan.Destroy {
		if len(one.Holders) > 0 {
			all = append(all, Blocker{Instance: one, Holders: one.Holders})
		}
	}
	return all
}

// Matches tells whether the card is as wanted, so that there is nothing to do.
func Matches(card GPU, wanted Wanted) bool {
	plan := PlanGPU(card, wanted)
	return plan.Refused == "" && !plan.Changes()
}
