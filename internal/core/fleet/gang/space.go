package gang

import "slices"

// maxStates bounds the combinations of members that are planned at once.
const maxStates = 1 << 13

// space numbers the combinations of members: how many of each class, from none to counts of them. The number of a sum of combinations is
// the sum of their numbers.
type space struct {
	counts  []int32
	strides []int
	size    int
	// digits are the combinations by number, a row of len(counts) each; nil where there is one class.
	digits []int32
}

// newSpace returns the space of combinations. The result is false if there are too many.
func newSpace(counts []int32) (*space, bool) {
	s := &space{counts: counts, size: 1}
	for _, n := range counts {
		s.strides = append(s.strides, s.size)
		s.size *= int(n) + 1
		if len(counts) > 1 && s.size > maxStates {
			return nil, false
		}
	}
	if len(counts) == 1 {
		return s, true
	}
	s.digits = make([]int32, 0, s.size*len(counts))
	row := make([]int32, len(counts))
	for range s.size {
		s.digits = append(s.digits, row...)
		for c := range row {
			if row[c]++; row[c] <= counts[c] {
				break
			}
			row[c] = 0
		}
	}
	return s, true
}

// row returns the combination with a number.
func (s *space) row(state int) []int32 {
	if s.digits == nil {
		return []int32{int32(state)}
	}
	return s.digits[state*len(s.counts) : (state+1)*len(s.counts)]
}

// number returns the number of a combination.
func (s *space) number(row []int32) int {
	state := 0
	for c, n := range row {
		state += int(n) * s.strides[c]
	}
	return state
}

// within tells whether a combination is part of another one.
func (s *space) within(part, state int) bool {
	if s.digits == nil {
		return part <= state
	}
	a, b := s.row(part), s.row(state)
	for c := range a {
		if a[c] > b[c] {
			return false
		}
	}
	return true
}

// entry is a combination that fits somewhere, with what it costs there.
type entry struct {
	state int
	cost  Cost
}

// table has the combinations that fit somewhere, by number. The first is that of no members.
type table []entry

// sums are the cheapest ways to divide combinations among parts, such as the nodes of a domain.
type sums struct {
	space *space
	costs []Cost
	reach []bool
	// choices are, by part and state, the position in the table of the part.
	choices [][]uint16
	parts   []table
}

// divide finds for each combination up to target the cheapest way to divide it among parts. Of equal ways it takes the one that gives
// the most to the first parts.
func (s *space) divide(parts []table, target int) *sums {
	d := &sums{space: s, costs: make([]Cost, target+1), reach: make([]bool, target+1), choices: make([][]uint16, len(parts)), parts: parts}
	d.reach[0] = true
	high := 0 // the highest number that is reached
	for p, t := range parts {
		if len(t) < 2 {
			continue
		}
		choice := make([]uint16, target+1)
		d.choices[p] = choice
		high = min(target, high+t[len(t)-1].state)
		for state := high; state > 0; state-- {
			for e := 1; e < len(t) && e < 1<<16; e++ {
				rest := state - t[e].state
				if rest < 0 {
					break
				}
				if !d.reach[rest] || s.digits != nil && !s.within(t[e].state, state) {
					continue
				}
				if cost := d.costs[rest].plus(t[e].cost); !d.reach[state] || cost.less(d.costs[state]) {
					d.reach[state], d.costs[state], choice[state] = true, cost, uint16(e)
				}
			}
		}
	}
	return d
}

// rows returns how a combination that is reached is divided: the combination of each part.
func (d *sums) rows(state int) [][]int32 {
	rows := make([][]int32, len(d.parts))
	for p := range slices.Backward(d.parts) {
		e := 0
		if d.choices[p] != nil {
			e = int(d.choices[p][state])
		}
		part := d.parts[p][e].state
		rows[p] = d.space.row(part)
		state -= part
	}
	return rows
}
