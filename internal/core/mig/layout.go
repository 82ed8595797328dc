package mig

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// Layout is a named layout of mig-parted: the wanted state of each of a node's GPUs.
type Layout []Entry

// Entry is the wanted state of the GPUs that it selects.
type Entry struct {
	// DeviceIDs (0xDDDDVVVV) selects models, and Boards selects models on certain boards; without both, the entry is
	// for every model.
	DeviceIDs []uint32
	Boards    []Board
	// All selects every GPU that supports MIG. Otherwise Indices selects the GPUs; if Enabled is set, one without MIG
	// is refused.
	All     bool
	Indices []int
	Enabled bool
	// Devices are numbers of MIG devices by profile.
	Devices map[string]int
}

// Board is a model on a certain board: PCI IDs 0xDDDDVVVV of the device and 0xSSSSVVVV of its subsystem.
type Board struct {
	DeviceID    uint32
	SubsystemID uint32
}

// filtered reports whether the entry is for certain models only.
func (e *Entry) filtered() bool { return len(e.DeviceIDs) > 0 || len(e.Boards) > 0 }

func (e *Entry) names(g *GPU) bool {
	board := Board{g.DeviceID, g.SubsystemID}
	if e.filtered() && !slices.Contains(e.DeviceIDs, g.DeviceID) && !slices.Contains(e.Boards, board) {
		return false
	}
	if e.All {
		return g.Capable
	}
	return slices.Contains(e.Indices, g.Index)
}

// Wanted returns the state that the layout wants of a GPU, or false when the layout does not select the GPU, which then
// stays as it is. If several entries select a GPU, the last one applies, as for mig-parted, which applies them in turn.
func (l Layout) Wanted(g GPU) (Wanted, bool) {
	for i := len(l) - 1; i >= 0; i-- {
		if l[i].names(&g) {
			return Wanted{Enabled: l[i].Enabled, Devices: l[i].Devices}, true
		}
	}
	return Wanted{}, false
}

// PlanNode plans the GPUs that the layout selects, in the given order. For an index without a GPU it appends a refused
// plan without a UUID, unless the entry is for certain models only: the node may have fewer of those than another node.
func PlanNode(gpus []GPU, layout Layout) []GPUPlan {
	var plans []GPUPlan
	for i := range gpus {
		if wanted, named := layout.Wanted(gpus[i]); named {
			plans = append(plans, PlanGPU(gpus[i], wanted))
		}
	}
	for _, index := range layout.missing(gpus) {
		plans = append(plans, GPUPlan{
			Index:   index,
			Refused: fmt.Sprintf("the layout names GPU %d, and the node has %s: correct the layout's devices", index, indices(gpus)),
		})
	}
	return plans
}

// missing returns the indices that the layout names and no GPU has, ascending.
func (l Layout) missing(gpus []GPU) []int {
	var missing []int
	for _, e := range l {
		if e.All || e.filtered() {
			continue
		}
		for _, index := range e.Indices {
			if !slices.ContainsFunc(gpus, func(c GPU) bool { return c.Index == index }) {
				missing = append(missing, index)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// indices lists the indices of the GPUs.
func indices(gpus []GPU) string {
	switch len(gpus) {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("only GPU %d", gpus[0].Index)
	}
	var parts []string
	for i := range gpus {
		parts = append(parts, fmt.Sprint(gpus[i].Index))
	}
	return "GPUs " + phrase.And(parts)
}
