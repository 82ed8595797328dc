package mig

import (
	"cmp"
	"slices"
)

// PlanGPU computes what happens to one GPU, by the goals of the package comment. Turning MIG off destroys every
// instance; a change of the mode waits for every holder of the GPU.
func PlanGPU(g GPU, wanted Wanted) GPUPlan {
	plan := GPUPlan{UUID: g.UUID, Index: g.Index, Wanted: wanted}
	t := newTable(&g.Geometry)
	if g.Capable && !g.Enabled && wanted.Enabled && len(wanted.Devices)+len(wanted.Placed) > 0 && len(t.shapes) == 0 {
		plan.Unplanned = true
		wanted.Devices, wanted.Placed = nil, nil
	}
	if plan.Refused = refusal(t, &g, wanted); plan.Refused != "" {
		return plan
	}
	if g.Enabled != wanted.Enabled {
		plan.SetMode, plan.Reset = &wanted.Enabled, g.ModeNeedsReset
	}
	var instances []Instance
	if g.Enabled {
		instances = g.Instances // with MIG off there are none
	}
	best := wanted.arrange(t, instances)
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
	plan.Blockers = blockers(&g, &plan)
	return plan
}

// arrange returns the layout with the wanted devices. refusal has returned for those that do not fit.
func (w *Wanted) arrange(t *table, instances []Instance) arrangement {
	if len(w.Placed) > 0 {
		return newSearch(t, instances).arrangement(t.slots(w.Placed))
	}
	best, _ := arrange(t, instances, t.counts(w.Devices))
	return best
}

func compareInstances(a, b Instance) int { return cmp.Or(a.Start-b.Start, a.GI-b.GI) }

// blockers returns the holders that would lose a device. A holder of a whole GPU with MIG on may use any of its
// devices.
func blockers(g *GPU, plan *GPUPlan) []Blocker {
	var all []Blocker
	device := func(one Instance) bool { return one.UUID != "" }
	if len(g.Holders) > 0 && (plan.SetMode != nil || slices.ContainsFunc(plan.Destroy, device)) {
		all = append(all, Blocker{Holders: g.Holders})
	}
	for _, one := range plan.Destroy {
		if len(one.Holders) > 0 {
			all = append(all, Blocker{Instance: one, Holders: one.Holders})
		}
	}
	return all
}

// Matches reports whether the GPU is as wanted, so that there is nothing to do.
func Matches(g GPU, wanted Wanted) bool {
	plan := PlanGPU(g, wanted)
	return plan.Refused == "" && !plan.Changes()
}
