package fleetview

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// HeldEntry is how many devices of an entry of a node a pod has.
type HeldEntry struct {
	Entry   int
	Devices int
}

// HeldBy returns what a pod has that was given to Build, by the position of the entry: as the GPUNode reports it, or as it was predicted.
func (v *View) HeldBy(uid string) []HeldEntry {
	counts := map[int]int{}
	if v.hardware != nil && !v.Counted {
		for i := range v.hardware.entries {
			for _, h := range v.hardware.entries[i].holders {
				if slices.Contains(h.pods, uid) {
					counts[i]++
				}
			}
		}
	}
	predicted := map[int]int{}
	for _, gpus := range v.Holdings[uid].GPUs {
		for i := range gpus.All() {
			predicted[i]++
		}
	}
	var list []HeldEntry
	for i := range v.Node.GPUs {
		if n := max(counts[i], predicted[i]); n > 0 {
			list = append(list, HeldEntry{i, n})
		}
	}
	return list
}

// Silent returns the entries which the GPUNode says are healthy, and which the Node does not offer: its agent does not run, or the two do
// not agree for a moment.
func (v *View) Silent() []int {
	if v.hardware == nil || v.Counted {
		return nil
	}
	var list []int
	for i := range v.Node.GPUs {
		if v.Node.GPUs[i].State == fleet.Gone && i < len(v.hardware.entries) && v.hardware.entries[i].gpu.State <= fleet.Degraded {
			list = append(list, i)
		}
	}
	return list
}
