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
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/safetext"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// explained is a request with the devices of the node that meet it.
type explained struct {
	claim *resourceapi.ResourceClaim
	wanted
	matching
	// label says what a request for extended resources is for.
	label string
}

// question is what the allocator was asked for one node.
type question struct {
	node   *corev1.Node
	claims []*resourceapi.ResourceClaim
	// labels say what the requests for extended resources are for, by name.
	labels map[string]string
}

// explain returns what keeps claims from a node on which the allocator did not allocate them. There is at least one reason.
func (c *Checker) explain(ctx context.Context, q *question) ([]v1alpha1.FitReason, error) {
	devices, pools, err := c.devicesOn(q.node)
	if err != nil {
		return nil, err
	}
	broken := c.relevant(ctx, q, pools)
	switch {
	case len(devices) == 0 && len(broken) > 0:
		return broken, nil
	case len(devices) == 0:
		return []v1alpha1.FitReason{{Code: v1alpha1.FitNoDevices, Message: "No ResourceSlice has devices for the node: no DRA driver has published any."}}, nil
	}
	requests := c.explained(ctx, q, devices)
	if few := tooFew(requests, devices); len(few) > 0 {
		return append(broken, few...), nil
	}
	reasons, err := c.inTheWay(ctx, q, requests)
	if len(reasons) == 1 && reasons[0].Code == v1alpha1.FitTogether && len(broken) > 0 {
		return broken, err
	}
	return append(broken, reasons...), err
}

// explained returns the requests with the devices that meet them.
func (c *Checker) explained(ctx context.Context, q *question, devices []device) (requests []explained) {
	for _, claim := range q.claims {
		for _, w := range requestsOf(claim) {
			requests = append(requests, explained{claim: claim, wanted: w, matching: c.match(ctx, &w, devices)})
			if claim.Name == extendedClaim {
				requests[len(requests)-1].label = q.labels[w.name]
			}
		}
	}
	return requests
}

// relevant returns the reasons of the pools of which nothing is allocated, except those of which only devices are known that no request
// can use.
func (c *Checker) relevant(ctx context.Context, q *question, pools []unusable) (reasons []v1alpha1.FitReason) {
	for _, pool := range pools {
		used := func(r explained) bool { return len(r.matched) > 0 }
		if len(pool.devices) == 0 || slices.ContainsFunc(c.explained(ctx, q, pool.devices), used) {
			reasons = append(reasons, pool.reason)
		}
	}
	return reasons
}

// tooFew returns the requests that the node could not meet if no device was held. A prioritized list is one of them when each of its
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
	if r.label != "" {
		return "The request for " + r.label
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
			"%s: none of the node's %s (%s) is of DeviceClass %s.", r.title(), phrase.Count(len(devices), "device"), strings.Join(slices.Compact(drivers), ", "), r.class)}
	}
	var why []string
	for i, fails := range r.fails {
		if fails > 0 {
			why = append(why, fmt.Sprintf("selector %d (%s) excludes %d", i+1, oneLine(r.selectors[i].CEL.Expression), fails))
		}
	}
	text := fmt.Sprintf("%s: %d of the node's %s of DeviceClass %s match, and it wants %d", r.title(), len(r.matched), phrase.Count(r.ofClass, "device"), r.class, r.count)
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

// mostUnanswered is for how many nodes what is in the way is searched although the allocator has not answered in time.
const mostUnanswered = 3

// inTheWay returns what has to change before the claims fit: the smallest sets of holdings, taints and constraints without which the
// allocator allocates them.
func (c *Checker) inTheWay(ctx context.Context, q *question, requests []explained) ([]v1alpha1.FitReason, error) {
	if c.unanswered >= mostUnanswered {
		return []v1alpha1.FitReason{{Code: v1alpha1.FitNotExplained, Message: fmt.Sprintf(
			"The devices that are free do not fit, and what is in the way was not searched for, since %d other nodes took too long.", mostUnanswered)}}, nil
	}
	sizes := [][]left{
		{{relaxed: relaxed{held: true}}, {relaxed: relaxed{taints: true}}, {constraints: true}},
		{{relaxed: relaxed{held: true, taints: true}}, {relaxed{held: true}, true}, {relaxed{taints: true}, true}},
		{{relaxed{held: true, taints: true}, true}},
	}
	answered := true
	for _, sets := range sizes {
		var fitting []left
		for _, without := range sets {
			fits, err := c.fitsWithout(ctx, q, without.relaxed, func(*resourceapi.ResourceClaim, int) bool { return !without.constraints })
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			answered = answered && err == nil
			if fits {
				fitting = append(fitting, without)
			}
		}
		if len(fitting) > 0 {
			return c.named(ctx, q, fitting, requests), nil
		}
	}
	if answered {
		return []v1alpha1.FitReason{{Code: v1alpha1.FitTogether, Message: together(requests)}}, nil
	}
	c.unanswered++
	return []v1alpha1.FitReason{{Code: v1alpha1.FitNotExplained, Message: fmt.Sprintf(
		"The devices that are free do not fit, and the allocator did not say within %s what is in the way.", c.settings.Explain)}}, nil
}

// fitsWithout asks the allocator with something left out; keep says which constraints are left. An error says nothing about the
// scheduler: it does not ask this.
func (c *Checker) fitsWithout(ctx context.Context, q *question, without relaxed, keep func(claim *resourceapi.ResourceClaim, at int) bool) (bool, error) {
	claims := make([]*resourceapi.ResourceClaim, len(q.claims))
	for i, claim := range q.claims {
		claims[i] = claim.DeepCopy()
		claims[i].Spec.Devices.Constraints = nil
		for at, constraint := range claim.Spec.Devices.Constraints {
			if keep(claim, at) {
				claims[i].Spec.Devices.Constraints = append(claims[i].Spec.Devices.Constraints, constraint)
			}
		}
	}
	results, err := c.allocate(ctx, c.settings.Explain, without, q.node, claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return false, nil
	}
	return err == nil && len(results) == len(claims), err
}

// together says that the requests do not fit whatever others hold.
func together(requests []explained) string {
	first := requests[0]
	if len(requests) > 1 {
		var names []string
		for _, r := range requests {
			name := r.name
			if r.label != "" {
				name = r.label
			}
			names = append(names, fmt.Sprintf("%s (%d of %s)", name, r.count, r.class))
		}
		return fmt.Sprintf("The requests fit one by one, but not together, even if no device was held: %s.", strings.Join(names, ", "))
	}
	if first.capacity {
		return fmt.Sprintf("%s: %s, but not %d of them with the capacity that it requests.", first.title(), counted(len(first.matched), "device", "matches", "match"), first.count)
	}
	return fmt.Sprintf("%s: %s, but not %d of them at one time, since they share capacity.", first.title(), counted(len(first.matched), "device", "matches", "match"), first.count)
}

// named returns the reasons for what is in the way, with names and numbers. Each of the sets that are left out makes the claims fit.
func (c *Checker) named(ctx context.Context, q *question, fitting []left, requests []explained) (reasons []v1alpha1.FitReason) {
	if slices.ContainsFunc(fitting, func(l left) bool { return l.held }) {
		reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitHeld, Message: held(requests)})
	}
	if slices.ContainsFunc(fitting, func(l left) bool { return l.taints }) {
		reasons = append(reasons, tainted(requests)...)
	}
	if at := slices.IndexFunc(fitting, func(l left) bool { return l.constraints }); at >= 0 {
		reasons = append(reasons, c.constraints(ctx, q, fitting[at].relaxed, requests)...)
	}
	return reasons
}

// mostNames is how many claims a sentence names.
const mostNames = 5

// held names the claims that hold the devices that the requests could use.
func held(requests []explained) string {
	all, taken, capacity := map[string]bool{}, map[string]bool{}, false
	example := map[string]string{}
	for _, r := range requests {
		for _, d := range r.matched {
			all[d.id()] = true
			if len(d.holders) == 0 || r.admin {
				continue
			}
			taken[d.id()] = true
			capacity = capacity || len(d.own) == 0
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
	what := ""
	if capacity {
		what = ", or capacity that these need"
	}
	return fmt.Sprintf("Other claims hold %d of the %s%s: %s.", len(taken), counted(len(all), "device", "that matches", "that match"), what, strings.Join(texts, ", "))
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
			verb := "have"
			if taints[taint] == 1 {
				verb = "has"
			}
			reasons = append(reasons, v1alpha1.FitReason{Code: v1alpha1.FitTainted, Message: fmt.Sprintf(
				"%s: %d of the %s %s the taint %s, which it does not tolerate.", r.title(), taints[taint],
				counted(len(r.matched), "device", "that matches", "that match"), verb, taint)})
		}
	}
	return reasons
}

// counted returns a number with its noun and what follows it in the singular or plural.
func counted(n int, noun, one, many string) string {
	if n == 1 {
		many = one
	}
	return phrase.Count(n, noun) + " " + many
}

// mostExpression is how much of an expression a sentence has.
const mostExpression = 120

// oneLine returns the beginning of an expression.
func oneLine(text string) string {
	text = safetext.Line(text)
	if runes := []rune(text); len(runes) > mostExpression {
		return string(runes[:mostExpression]) + "…"
	}
	return text
}
