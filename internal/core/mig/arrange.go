package mig

import (
	"cmp"
	"slices"
)

// arrangement is the layout that was chosen for a GPU.
type arrangement struct {
	// kept says, for each instance of the GPU, whether it is kept.
	kept []bool
	// create lists the slots of the layout that no kept instance occupies.
	create []slot
}

// cost is what a layout costs the current holders, in the order of the goals in the package comment.
type cost struct {
	holders   int
	destroyed int
	held      int
	// starts are the starts of the held instances that are destroyed.
	starts uint64
}

func (c cost) compare(d cost) int {
	if order := cmp.Or(c.holders-d.holders, c.destroyed-d.destroyed, c.held-d.held); order != 0 {
		return order
	}
	differ := c.starts ^ d.starts
	switch lowest := differ & -differ; {
	case differ == 0:
		return 0
	case c.starts&lowest != 0:
		return -1
	}
	return 1
}

// search holds the data for comparing layouts.
type search struct {
	table     *table
	instances []Instance
	// standing is the position of the instance in each slot, or -1.
	standing [][]int
	// holders are the holders of each instance, as numbers.
	holders [][]int
	// counted is the last round in which each holder was counted.
	counted []int
	round   int
	kept    []bool
}

func newSearch(t *table, instances []Instance) *search {
	s := &search{
		table: t, instances: instances, standing: make([][]int, len(t.shapes)),
		holders: make([][]int, len(instances)), kept: make([]bool, len(instances)),
	}
	for i := range t.shapes {
		s.standing[i] = make([]int, len(t.shapes[i].places))
		for p := range s.standing[i] {
			s.standing[i][p] = -1
		}
	}
	numbers := map[string]int{}
	for i := range instances {
		if at, ok := t.slot(&instances[i]); ok {
			s.standing[at.shape][at.place] = i
		}
		for _, name := range instances[i].Holders {
			number, known := numbers[name]
			if !known {
				number = len(numbers)
				numbers[name] = number
			}
			s.holders[i] = append(s.holders[i], number)
		}
	}
	s.counted = make([]int, len(numbers))
	return s
}

// arrange returns the best layout with that number of devices of each shape; ok is false when there is none.
func arrange(t *table, instances []Instance, counts []int) (best arrangement, ok bool) {
	s := newSearch(t, instances)
	caps := t.caps(counts)
	remaining, bestRemaining := make([]int, len(t.shapes)), make([]int, len(t.shapes))
	var bestCost cost
	var bestLayout []slot
	for layout, used := range t.layouts(counts) {
		c := s.cost(layout)
		order := -1
		if ok {
			order = c.compare(bestCost)
		}
		if order > 0 {
			continue
		}
		// Of two equal layouts, the first has the higher starts.
		if t.remaining(remaining, caps, used); order == 0 && slices.Compare(remaining, bestRemaining) <= 0 {
			continue
		}
		ok, bestCost, bestLayout = true, c, append(bestLayout[:0], layout...)
		remaining, bestRemaining = bestRemaining, remaining
	}
	return s.arrangement(bestLayout), ok
}

// keep marks the instances that are part of a layout.
func (s *search) keep(layout []slot) {
	clear(s.kept)
	for _, at := range layout {
		if i := s.standing[at.shape][at.place]; i >= 0 {
			s.kept[i] = true
		}
	}
}

func (s *search) cost(layout []slot) cost {
	s.keep(layout)
	s.round++
	var c cost
	for i, kept := range s.kept {
		if kept {
			continue
		}
		c.destroyed++
		if len(s.holders[i]) == 0 {
			continue
		}
		c.held++
		c.starts |= 1 << max(0, min(s.instances[i].Start, maxSlices-1))
		for _, number := range s.holders[i] {
			if s.counted[number] != s.round {
				s.counted[number] = s.round
				c.holders++
			}
		}
	}
	return c
}

func (s *search) arrangement(layout []slot) arrangement {
	s.keep(layout)
	a := arrangement{kept: s.kept}
	for _, at := range layout {
		if s.standing[at.shape][at.place] < 0 {
			a.create = append(a.create, at)
		}
	}
	return a
}
