package inventory

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Changes are the differences between two snapshots.
type Changes struct {
	// Added, Changed and Removed name GPUs, each sorted. A GPU is changed when any of its data is, including its index
	// and its health, but not its links.
	Added   []gpu.UUID
	Changed []gpu.UUID
	Removed []gpu.UUID
	// Links is true when two GPUs that are in both snapshots have different links.
	Links bool
	// Node is true when the vendors or the faults that belong to no GPU differ.
	Node bool
}

// String prints the changes on one line, as in "added GPU-a; changed GPU-b, GPU-c; node".
func (c Changes) String() string {
	var parts []string
	list := func(word string, ids []gpu.UUID) {
		if len(ids) == 0 {
			return
		}
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i] = string(id)
		}
		parts = append(parts, fmt.Sprintf("%s %s", word, strings.Join(names, ", ")))
	}
	list("added", c.Added)
	list("changed", c.Changed)
	list("removed", c.Removed)
	if c.Links {
		parts = append(parts, "links")
	}
	if c.Node {
		parts = append(parts, "node")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// Equal reports whether two snapshots are the same.
func Equal(a, b *gpu.Snapshot) bool { return a == b || reflect.DeepEqual(a, b) }

// Diff compares two snapshots; nil counts as an empty one.
func Diff(old, new *gpu.Snapshot) Changes {
	if old == nil {
		old = &gpu.Snapshot{}
	}
	if new == nil {
		new = &gpu.Snapshot{}
	}
	var changes Changes
	before, after := positions(old), positions(new)
	for i := range new.GPUs {
		g := &new.GPUs[i]
		j, known := before[g.UUID]
		switch {
		case !known:
			changes.Added = append(changes.Added, g.UUID)
		case !reflect.DeepEqual(*g, old.GPUs[j]):
			changes.Changed = append(changes.Changed, g.UUID)
		}
	}
	for i := range old.GPUs {
		if _, stays := after[old.GPUs[i].UUID]; !stays {
			changes.Removed = append(changes.Removed, old.GPUs[i].UUID)
		}
	}
	slices.Sort(changes.Added)
	slices.Sort(changes.Changed)
	slices.Sort(changes.Removed)
	changes.Links = linksDiffer(old, new, before)
	changes.Node = !reflect.DeepEqual(old.Vendors, new.Vendors) || !slices.Equal(old.Faults, new.Faults)
	return changes
}

func positions(s *gpu.Snapshot) map[gpu.UUID]int {
	at := make(map[gpu.UUID]int, len(s.GPUs))
	for i := range s.GPUs {
		at[s.GPUs[i].UUID] = i
	}
	return at
}

func linksDiffer(old, new *gpu.Snapshot, before map[gpu.UUID]int) bool {
	for i := range new.GPUs {
		oldI, ok := before[new.GPUs[i].UUID]
		if !ok {
			continue
		}
		for j := range i {
			oldJ, ok := before[new.GPUs[j].UUID]
			if ok && link(old, oldI, oldJ) != link(new, i, j) {
				return true
			}
		}
	}
	return false
}

// link reads a cell of a topology that may be missing or too small.
func link(s *gpu.Snapshot, i, j int) gpu.Link {
	if i >= len(s.Topology) || j >= len(s.Topology[i]) {
		return gpu.Link{}
	}
	return s.Topology[i][j]
}
