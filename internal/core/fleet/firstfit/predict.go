package firstfit

import (
	"cmp"
	"fmt"
	"slices"
)

// DefaultSteps is enough for nearly all claims of the random comparison with the allocator. All of it takes less than a millisecond on
// 8 GPUs with all their MIG devices (BenchmarkUnknown of internal/cluster/drafleet).
const DefaultSteps = 20_000

// search is one prediction.
type search struct {
	node     *Node
	requests []request
	// chosen are the devices of the solution so far, and picks the same in order.
	chosen []bool
	picks  []Pick
	// left is what is left of each counter, or -1 when claims hold more than there is.
	left []int64
	// overdrawn pools have such a counter. The allocator allocates none of their devices that take counters.
	overdrawn []bool
	matches   []match
	// prune: no selector fails, so that what cannot lead to a solution can be left out.
	prune bool
	steps int
	limit int
}

// request is a Request of one of the claims.
type request struct {
	claim    int
	index    int
	count    int
	verdicts []Verdict
	// candidates are the devices that can be allocated if nothing else is.
	candidates []int
	// matches are the constraints of the claim that are on the request.
	matches []int
}

// match is a constraint with the devices that it has.
type match struct {
	// values are the numbers of the devices' values, which are equal for equal values; 0 for a device without the attribute.
	values []int32
	value  int32
	count  int
}

// Predict returns what the allocator gives to claims that are allocated together, when held says for each device whether a claim
// holds it. It tries at most the given number of devices. The error wraps ErrNotSimple.
func (n *Node) Predict(claims []Claim, held []bool, steps int) (Result, error) {
	s := &search{node: n, chosen: make([]bool, len(n.devices)), limit: steps, prune: true}
	s.count(held)
	result := Result{}
	wanted := 0
	for c := range claims {
		own := 0
		for r := range claims[c].Requests {
			one := &claims[c].Requests[r]
			counts, err := s.request(c, r, one, held)
			if err != nil {
				return Result{}, err
			}
			result.Counts = append(result.Counts, counts)
			if own += one.Count; own > MaxDevices {
				return Result{}, fmt.Errorf("request %s: %w: the claim wants more than %d devices", one.Name, ErrNotSimple, MaxDevices)
			}
		}
		s.constrain(&claims[c], c)
		wanted += own
	}
	s.picks = make([]Pick, 0, wanted)
	result.Outcome = s.place(0, 0, 0)
	result.Steps = s.steps
	if result.Outcome == Fits {
		result.Picks = s.picks
	}
	return result, nil
}

// count computes what the devices that are held leave of the counters.
func (s *search) count(held []bool) {
	n := s.node
	s.overdrawn = make([]bool, len(n.pools))
	if len(n.totals) == 0 {
		return
	}
	s.left = slices.Clone(n.totals)
	for i := range n.devices {
		if !held[i] {
			continue
		}
		for _, c := range n.devices[i].consumes {
			s.left[c.counter] = max(-1, s.left[c.counter]-c.amount)
		}
	}
	for i, p := range n.pools {
		s.overdrawn[i] = slices.Min(append(s.left[p.first:p.end:p.end], 0)) < 0
	}
}

// request adds a request with its candidates.
func (s *search) request(claim, index int, r *Request, held []bool) (Counts, error) {
	counts := Counts{Claim: claim, Request: index}
	if r.Count < 1 {
		return counts, fmt.Errorf("request %s: %w: it wants %d devices", r.Name, ErrNotSimple, r.Count)
	}
	made := request{claim: claim, index: index, count: r.Count, verdicts: r.Verdicts, candidates: make([]int, 0, len(r.Verdicts))}
	for i, verdict := range r.Verdicts {
		d := &s.node.devices[i]
		switch {
		case verdict == No || d.elsewhere:
			continue
		case verdict == Fails:
			if !held[i] {
				s.prune = false
				made.candidates = append(made.candidates, i)
			}
			continue
		case d.Special != "" || s.node.pools[d.pool].special != "":
			why := cmp.Or(d.Special, s.node.pools[d.pool].special)
			return counts, fmt.Errorf("request %s: %w: device %s %s", r.Name, ErrNotSimple, d.Name, why)
		}
		counts.Matching++
		switch {
		case verdict == Tainted:
			counts.Tainted++
		case held[i]:
			counts.Held++
		case !s.enough(d):
			counts.Short++
		default:
			made.candidates = append(made.candidates, i)
			counts.Free++
		}
	}
	s.requests = append(s.requests, made)
	return counts, nil
}

// enough tells whether there is enough left of the counters of a device.
func (s *search) enough(d *device) bool {
	if d.Counted && s.overdrawn[d.pool] {
		return false
	}
	for _, c := range d.consumes {
		if s.left[c.counter] < c.amount {
			return false
		}
	}
	return true
}

// constrain adds the constraints of a claim to its requests, which are the last ones.
func (s *search) constrain(claim *Claim, at int) {
	for i := range claim.Constraints {
		constraint := &claim.Constraints[i]
		made := match{values: make([]int32, len(s.node.devices))}
		numbers := map[Value]int32{}
		next := int32(0)
		for k := range s.requests {
			r := &s.requests[k]
			if r.claim != at || len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, claim.Requests[r.index].Name) {
				continue
			}
			r.matches = append(r.matches, len(s.matches))
			for _, d := range r.candidates {
				value, there := s.node.devices[d].Attributes[constraint.Attribute]
				if !there || made.values[d] != 0 {
					continue
				}
				number := numbers[value]
				if number == 0 || value.Kind == Other {
					next++
					number = next
					numbers[value] = number
				}
				made.values[d] = number
			}
		}
		s.matches = append(s.matches, made)
	}
}

// place serves the request at a position from its k-th device on, with the candidates from a position on, and then the requests
// after it.
func (s *search) place(at, k, from int) Outcome {
	if at == len(s.requests) {
		return Fits
	}
	r := &s.requests[at]
	if k == r.count {
		return s.place(at+1, 0, 0)
	}
	for i := from; i < len(r.candidates); i++ {
		if s.prune && len(r.candidates)-i < r.count-k {
			break
		}
		if s.steps == s.limit {
			return Unknown
		}
		s.steps++
		d := r.candidates[i]
		switch {
		case s.chosen[d]:
			continue
		case r.verdicts[d] == Fails:
			return Aborted
		case !s.fits(r, d) || s.prune && !s.promising(r, i, r.count-k):
			continue
		}
		s.take(r, d, 1)
		if outcome := s.place(at, k+1, i+1); outcome != DoesNotFit {
			return outcome
		}
		s.take(r, d, -1)
	}
	return DoesNotFit
}

// fits tells whether a device can be added.
func (s *search) fits(r *request, d int) bool {
	if !s.enough(&s.node.devices[d]) {
		return false
	}
	for _, i := range r.matches {
		if m := &s.matches[i]; m.values[d] == 0 || m.count > 0 && m.values[d] != m.value {
			return false
		}
	}
	return true
}

// promising tells whether enough candidates have the value of the one at a position, if a constraint would get its first device.
func (s *search) promising(r *request, at, want int) bool {
	for _, i := range r.matches {
		m := &s.matches[i]
		if m.count > 0 {
			continue
		}
		found := 0
		for _, d := range r.candidates[at:] {
			if m.values[d] == m.values[r.candidates[at]] && !s.chosen[d] {
				if found++; found == want {
					break
				}
			}
		}
		if found < want {
			return false
		}
	}
	return true
}

// take adds a device to the solution, or removes the last one for a sign of -1.
func (s *search) take(r *request, d, sign int) {
	for _, c := range s.node.devices[d].consumes {
		s.left[c.counter] -= int64(sign) * c.amount
	}
	for _, i := range r.matches {
		m := &s.matches[i]
		if m.count == 0 {
			m.value = m.values[d]
		}
		m.count += sign
	}
	s.chosen[d] = sign > 0
	if sign > 0 {
		s.picks = append(s.picks, Pick{r.claim, r.index, d})
	} else {
		s.picks = s.picks[:len(s.picks)-1]
	}
}
