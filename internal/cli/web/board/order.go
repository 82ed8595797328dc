package board

import (
	"slices"
	"strconv"
	"strings"
)

// place is where a GPU is in the row of its node.
type place struct {
	// at is its position in the list of devices.
	at int
	// linked is true where NVLinks connect it with the one before, border where that is on another NUMA node.
	linked bool
	border bool
}

// order puts the GPUs of a node in a row: NUMA nodes one after the other, and on each a GPU that is linked with the one before, by most
// NVLinks, the lowest position first. Topology is the matrix of a GPUNode; without it the order is that of the positions.
func order(topology []string, numa []int) []place {
	links := linksOf(topology, len(numa))
	rest := make([]int, len(numa))
	for i := range rest {
		rest[i] = i
	}
	slices.SortStableFunc(rest, func(a, b int) int { return numa[a] - numa[b] })
	var row []place
	for len(rest) > 0 {
		next, linked := 0, false
		if len(row) > 0 {
			last := row[len(row)-1].at
			for i, candidate := range rest {
				if numa[candidate] == numa[rest[0]] && links[last][candidate] > links[last][rest[next]] {
					next = i
				}
			}
			linked = links[last][rest[next]] > 0
		}
		at := rest[next]
		rest = slices.Delete(rest, next, next+1)
		row = append(row, place{at: at, linked: linked, border: len(row) > 0 && numa[row[len(row)-1].at] != numa[at]})
	}
	return row
}

// linksOf returns the number of NVLinks between each two GPUs.
func linksOf(topology []string, count int) [][]int {
	links := make([][]int, count)
	for i := range links {
		links[i] = make([]int, count)
		if i >= len(topology) {
			continue
		}
		for k, cell := range strings.Fields(topology[i]) {
			number, isLink := strings.CutPrefix(cell, "NV")
			if n, err := strconv.Atoi(number); isLink && err == nil && n > 0 && k < count {
				links[i][k] = n
			}
		}
	}
	return links
}
