package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// explained is a request with the devices of the node that meet it.
type explained struct {
	claim *resourceapi.ResourceClaim
	wanted
	matching
}

// explain returns what keeps claims from a node on which the allocator did not allocate them. There is at least one reason.
func (c *Checker) explain(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim) ([]v1alpha1.FitReason, error) {
	devices, missing, err := c.devicesOn(node)
	if err != nil {
		return nil, err
	}
	var reasons []v1alpha1.FitReason
	for _, pool := range missing {
		reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitPoolIncomplete, Message: fmt.Sprintf(
			"Pool %s of driver %s is incomplete: %d of the %d ResourceSlices of generation %d exist, so its devices are not allocated.",
			pool.pool, pool.driver, pool.have, pool.want, pool.generation)})
	}
	if len(devices) == 0 {
		if len(reasons) == 0 {
			reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitNoDevices, Message: "No ResourceSlice has devices for the node: no DRA driver has published any."})
		}
		return reasons, nil
	}
	var requests []explained
	for _, claim := range claims {
		for _, w := range requestsOf(claim) {
			requests = append(requests, explained{claim, w, c.match(ctx, &w, devices)})
		}
	}
	if few := tooFew(requests, devices); len(few) > 0 {
		return append(reasons, few...), nil
	}
	more, err := c.inTheWay(ctx, node, claims, requests)
	return append(reasons, more...), err
}

// tooFew returns the requests that the node could not meet if nobody held anything. A prioritized list is one of them when each of its
// entries is.
func tooFew(requests []explained, devices []device) (reasons []v1alpha1.FitReason) {
	for i := 0; i < len(requests); {
		group := requests[i : i+max(1, requests[i].choice)]
		i += len(group)
		if slices.ContainsFunc(group, func(r explained) bool { return int64(len(r.matched)) >= r.count }) {
			continue
		}
		for _, r := range group {
			reasons = append(reasons, r.tooFew(devices))
		}
	}
	return reasons
}

// title names a request in a sentence.
func (r *explained) title() string {
	if r.claim.Name == "" {
		return "Request " + r.name + " of the pod's extended resources"
	}
	return "Request " + r.name + " of ResourceClaim " + r.claim.Name
}

func (r *explained) tooFew(devices []device) v1alpha1.FitReason {
	if r.ofClass == 0 {
		var drivers []string
		for _, d := range devices {
			drivers = append(drivers, d.driver)
		}
		slices.Sort(drivers)
		return v1alpha1.FitReason{Code: v1alpha1.FitClassMatchesNothing, Message: fmt.Sprintf(
			"%s: none of the node's %s (%s) is of DeviceClass %s.", r.title(), count(len(devices), "device"), strings.Join(slices.Compact(drivers), ", "), r.class)}
	}
	var why []string
	for i, fails := range r.fails {
		if fails > 0 {
			why = append(why, fmt.Sprintf("selector %d (%s) excludes %d", i+1, oneLine(r.selectors[i].CEL.Expression), fails))
		}
	}
	text := fmt.Sprintf("%s: %d of the node's %s of DeviceClass %s match, and it wants %d", r.title(), len(r.matched), count(r.ofClass, "device"), r.class, r.count)
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return v1alpha1.FitReason{Code: v1alpha1.FitTooFewMatch, Message: text + "."}
}

// left says what is left out of the question to the allocator.
type left struct {
	relaxed
	constraints bool
}

// inTheWay returns what has to change before the claims fit: the smallest sets of holdings, taints and constraints without which the
// allocator allocates them.
func (c *Checker) inTheWay(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, requests []explained) ([]v1alpha1.FitReason, error) {
	sizes := [][]left{
		{{relaxed: relaxed{held: true}}, {relaxed: relaxed{taints: true}}, {constraints: true}},
		{{relaxed: relaxed{held: true, taints: true}}, {relaxed{held: true}, true}, {relaxed{taints: true}, true}},
		{{relaxed{held: true, taints: true}, true}},
	}
	for _, sets := range sizes {
		var all left
		for _, without := range sets {
			fits, err := c.fitsWithout(ctx, node, claims, without)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				return []v1alpha1.FitReason{{Code: v1alpha1.FitTogether, Message: fmt.Sprintf(
					"The devices that are free do not fit, and what is in the way was not found within %s.", c.settings.Explain)}}, nil
			}
			if err != nil {
				return nil, err
			}
			if fits {
				all.held, all.taints, all.constraints = all.held || without.held, all.taints || without.taints, all.constraints || without.constraints
			}
		}
		if all != (left{}) {
			return c.named(all, claims, requests), nil
		}
	}
	return []v1alpha1.FitReason{{Code: v1alpha1.FitTogether, Message: together(requests)}}, nil
}

// fitsWithout asks the allocator with something left out.
func (c *Checker) fitsWithout(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, without left) (bool, error) {
	if without.constraints {
		changed := make([]*resourceapi.ResourceClaim, len(claims))
		for i := range claims {
			changed[i] = claims[i].DeepCopy()
			changed[i].Spec.Devices.Constraints = nil
		}
		claims = changed
	}
	results, err := c.allocate(ctx, c.settings.Explain, without.relaxed, node, claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return false, nil
	}
	return len(results) == len(claims), err
}

func together(requests []explained) string {
	var names []string
	for _, r := range requests {
		names = append(names, fmt.Sprintf("%s (%d of %s)", r.name, r.count, r.class))
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s: %s match, but not %d of them at one time, since they share capacity.", requests[0].title(), count(len(requests[0].matched), "device"), requests[0].count)
	}
	return fmt.Sprintf("The requests fit one by one, but not together, even if nobody held a device: %s.", strings.Join(names, ", "))
}

// named returns the reasons for what is in the way, with names and numbers.
func (c *Checker) named(all left, claims []*resourceapi.ResourceClaim, requests []explained) (reasons []v1alpha1.FitReason) {
	if all.held {
		reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitHeld, Message: held(requests)})
	}
	if all.taints {
		reasons = append(reasons, tainted(requests)...)
	}
	if all.constraints {
		for _, claim := range claims {
			for i := range claim.Spec.Devices.Constraints {
				reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitConstraint, Message: constrained(claim, &claim.Spec.Devices.Constraints[i], requests)})
			}
		}
	}
	return reasons
}

// mostNames is how many claims a sentence names.
const mostNames = 5

// held names the claims that hold the devices that the requests could use.
func held(requests []explained) string {
	all, taken := map[string]bool{}, map[string]bool{}
	example := map[string]string{}
	for _, r := range requests {
		for _, d := range r.matched {
			name := d.pool + "/" + d.Name
			all[name] = true
			if len(d.holders) == 0 || r.admin {
				continue
			}
			taken[name] = true
			for _, holder := range d.holders {
				device := ""
				if slices.Contains(d.own, holder) {
					device = " (" + d.Name + ")"
				}
				example[holder] = cmp.Or(example[holder], device)
			}
		}
	}
	names := slices.Sorted(maps.Keys(example))
	var texts []string
	for _, name := range names[:min(len(names), mostNames)] {
		texts = append(texts, name+example[name])
	}
	if more := len(names) - mostNames; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("Other claims hold %d of the %s that match, or share their capacity: %s.", len(taken), count(len(all), "device"), strings.Join(texts, ", "))
}

// tainted names the taints of each request's devices.
func tainted(requests []explained) (reasons []v1alpha1.FitReason) {
	for _, r := range requests {
		taints := map[string]int{}
		for _, d := range r.matched {
			if taint := untolerated(d, r.tolerations); taint != nil {
				taints[fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect)]++
			}
		}
		for _, taint := range slices.Sorted(maps.Keys(taints)) {
			reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitTainted, Message: fmt.Sprintf(
				"%s: %d of the %s that match have the taint %s, which it does not tolerate.", r.title(), taints[taint], count(len(r.matched), "device"), taint)})
		}
	}
	return reasons
}

// constrained says how far a constraint can be met with the devices that are free.
func constrained(claim *resourceapi.ResourceClaim, constraint *resourceapi.DeviceConstraint, requests []explained) string {
	name, attribute := "matchAttribute", constraint.MatchAttribute
	if attribute == nil {
		name, attribute = "distinctAttribute", constraint.DistinctAttribute
	}
	groups, free, want := grouped(claim, constraint.Requests, *attribute, requests)
	largest := 0
	for _, group := range groups {
		largest = max(largest, len(group))
	}
	text := fmt.Sprintf("The constraint %s %s of ResourceClaim %s cannot be met, although %s match and are free: ", name, *attribute, claim.Name, count(len(free), "device"))
	if constraint.MatchAttribute == nil {
		return text + fmt.Sprintf("they have %s, and it wants %d.", count(len(groups), "different value"), want)
	}
	if len(groups) == 0 {
		return text + "none of them has the attribute."
	}
	return text + fmt.Sprintf("at most %d of them have the same value, and it wants %d.", largest, want)
}

// grouped returns the free devices of the requests of a constraint, those of them with each value of an attribute, and how many devices
// the requests want.
func grouped(claim *resourceapi.ResourceClaim, names []string, attribute resourceapi.FullyQualifiedName, requests []explained) (
	groups map[string]map[string]bool, free map[string]bool, want int64,
) {
	groups, free = map[string]map[string]bool{}, map[string]bool{}
	counted := map[string]bool{}
	for _, r := range requests {
		covered := len(names) == 0 || slices.Contains(names, r.name) || slices.Contains(names, r.request())
		if r.claim != claim || !covered {
			continue
		}
		if !counted[r.request()] {
			counted[r.request()] = true
			want += r.count
		}
		for _, d := range r.matched {
			if len(d.holders) > 0 || untolerated(d, r.tolerations) != nil {
				continue
			}
			id := d.pool + "/" + d.Name
			free[id] = true
			if text := attributeText(d, attribute); text != "" {
				if groups[text] == nil {
					groups[text] = map[string]bool{}
				}
				groups[text][id] = true
			}
		}
	}
	return groups, free, want
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

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// oneLine returns an expression without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
