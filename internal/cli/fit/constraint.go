package fit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/phrase"
	resourceapi "k8s.io/api/resource/v1"
)

// constraints returns the constraints without one of which the claims fit, when others are left out too; all of them when there is no
// such one.
func (c *Checker) constraints(ctx context.Context, q *question, without relaxed, requests []explained) (reasons []v1alpha1.FitReason) {
	var all []v1alpha1.FitReason
	for _, claim := range q.claims {
		for i := range claim.Spec.Devices.Constraints {
			all = append(all, v1alpha1.FitReason{Code: v1alpha1.FitConstraint, Message: constrained(claim, &claim.Spec.Devices.Constraints[i], requests)})
			fits, _ := c.fitsWithout(ctx, q, without, func(of *resourceapi.ResourceClaim, at int) bool { return of != claim || at != i })
			if fits {
				reasons = append(reasons, all[len(all)-1])
			}
		}
	}
	if len(reasons) == 0 {
		return all
	}
	return reasons
}

// constrained says how far a constraint can be met with the devices that are free.
func constrained(claim *resourceapi.ResourceClaim, constraint *resourceapi.DeviceConstraint, requests []explained) string {
	name, attribute := "matchAttribute", constraint.MatchAttribute
	if attribute == nil {
		name, attribute = "distinctAttribute", constraint.DistinctAttribute
	}
	g := groupedBy(claim, constraint.Requests, *attribute, requests)
	largest, enough := int64(0), false
	for text, group := range g.values {
		largest = max(largest, int64(len(group)))
		enough = enough || int64(len(group)) >= g.want && g.meets(text)
	}
	why := ""
	switch {
	case len(g.values) == 0:
		why = "none of them has the attribute"
	case constraint.MatchAttribute == nil && int64(len(g.values)) < g.want:
		why = fmt.Sprintf("they have %s, and it wants %d", phrase.Count(len(g.values), "different value"), g.want)
	case constraint.MatchAttribute == nil:
		why = "its requests do not get devices with different values at one time"
	case largest < g.want:
		why = fmt.Sprintf("at most %d of them have the same value, and it wants %d", largest, g.want)
	case !enough:
		why = fmt.Sprintf("no value has enough of them for each of its requests: %s", strings.Join(g.wants, ", "))
	default:
		why = "those of one value share capacity, or another constraint excludes them"
	}
	return fmt.Sprintf("The constraint %s %s of ResourceClaim %s cannot be met with the %s: %s.", name, *attribute, claim.Name,
		counted(len(g.free), "device", "that matches and is free", "that match and are free"), why)
}

// group has the free devices of the requests of a constraint.
type group struct {
	free map[string]bool
	// values has them by the value of the attribute, and each request's by its name and the value.
	values map[string]map[string]bool
	each   map[string]map[string]int64
	// want is how many devices the requests want; of a prioritized list the entry with the fewest counts.
	want int64
	// wants are the requests with their counts, and least the smallest count of each.
	wants []string
	least map[string]map[string]int64
}

// meets returns whether the free devices with a value are enough for each request, by number.
func (g *group) meets(text string) bool {
	for _, entries := range g.least {
		met := false
		for name, count := range entries {
			met = met || g.each[name][text] >= count
		}
		if !met {
			return false
		}
	}
	return true
}

// groupedBy groups the free devices of the requests of a constraint by the value of an attribute. No names are all requests.
func groupedBy(claim *resourceapi.ResourceClaim, names []string, attribute resourceapi.FullyQualifiedName, requests []explained) *group {
	g := &group{free: map[string]bool{}, values: map[string]map[string]bool{}, each: map[string]map[string]int64{}, least: map[string]map[string]int64{}}
	for _, r := range requests {
		if r.claim != claim || len(names) > 0 && !slices.Contains(names, r.name) && !slices.Contains(names, r.request()) {
			continue
		}
		if g.least[r.request()] == nil {
			g.least[r.request()] = map[string]int64{}
		}
		g.least[r.request()][r.name], g.each[r.name] = r.count, map[string]int64{}
		g.wants = append(g.wants, fmt.Sprintf("%s (%d)", r.name, r.count))
		for _, d := range r.matched {
			if len(d.holders) > 0 && !r.admin || untolerated(d, r.tolerations) != nil {
				continue
			}
			g.free[d.id()] = true
			text := attributeText(d, attribute)
			if text == "" {
				continue
			}
			g.each[r.name][text]++
			if g.values[text] == nil {
				g.values[text] = map[string]bool{}
			}
			g.values[text][d.id()] = true
		}
	}
	for _, entries := range g.least {
		least := int64(resourceapi.AllocationResultsMaxSize)
		for _, count := range entries {
			least = min(least, count)
		}
		g.want += least
	}
	return g
}

// attributeText returns the value of an attribute of a device; empty when it has none.
func attributeText(d device, name resourceapi.FullyQualifiedName) string {
	attribute, ok := d.Attributes[resourceapi.QualifiedName(name)]
	if own, found := strings.CutPrefix(string(name), d.driver+"/"); !ok && found {
		attribute, ok = d.Attributes[resourceapi.QualifiedName(own)]
	}
	switch {
	case !ok:
		return ""
	case attribute.StringValue != nil:
		return "string " + *attribute.StringValue
	case attribute.IntValue != nil:
		return fmt.Sprintf("int %d", *attribute.IntValue)
	case attribute.BoolValue != nil:
		return fmt.Sprintf("bool %t", *attribute.BoolValue)
	case attribute.VersionValue != nil:
		return "version " + *attribute.VersionValue
	}
	return ""
}
