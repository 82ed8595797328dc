package mig

import (
	"fmt"
	"slices"
)

// Layout is a named layout of mig-parted: what each of a node's cards is to be.
type Layout []Entry

// Entry says what the cards that it names are to be.
type Entry struct {
	// DeviceIDs (0xDDDDVVVV) are the models it is for, and Boards the models with certain boards; without both it is for
	// every model.
	DeviceIDs []uint32
	Boards    []Board
	// All names every card that can do MIG. Otherwise Indices are the cards; one that cannot
	// do MIG is refused there when Enabled.
	All     bool
	Indices []int
	Enabled bool
	// Devices are numbers of MIG devices by profile.
	Devices map[string]int
}

// Board is a model on a certain board: PCI IDs 0xDDDDVVVV of the device and 0xSSSSVVVV of its subsystem.
type Board struct{ DeviceID, SubsystemID uint32 }

// filtered tells whether the entry is for certain models only.
func (e *Entry) filtered() bool { return len(e.DeviceIDs) > 0 || len(e.Boards) > 0 }

func (e *Entry) names(card *GPU) bool {
	board := Board{card.DeviceID, card.SubsystemID}
	if e.filtered() && !slices.Contains(e.DeviceIDs, card.DeviceID) && !slices.Contains(e.Boards, board) {
		return false
	}
	if e.All {
		return card.Capable
	}
	return slices.Contains(e.Indices, card.Index)
}

// Wanted is what the layout wants of a card; false when it does not name it, which leaves the
// card as it is. Where several entries name a card the last decides, as it does for
// mig-parted, which applies them in turn.
func (l Layout) Wanted(card GPU) (Wanted, bool) {
	for i := len(l) - 1; i >= 0; i-- {
		if l[i].names(&card) {
			return Wanted{Enabled: l[i].Enabled, Devices: l[i].Devices}, true
		}
	}
	return Wanted{}, false
}

// PlanNode plans the cards that the layout names, in the order given. For an index that no card
// has there is a refused plan without a UUID at the end, unless the entry is for certain models
// only, of which the node may have fewer than another.
func PlanNode(cards []GPU, layout Layout) []GPUPlan {
	var plans []GPUPlan
	for i := range cards {
		if wanted, named := layout.Wanted(cards[i]); named {
			plans = append(plans, PlanGPU(cards[i], wanted))
		}
	}
	for _, index := range layout.missing(cards) {
		plans = append(plans, GPUPlan{
			Index:   index,
			Refused: fmt.Sprintf("the layout names GPU %d, and the node has %s: correct the layout's devices", index, indices(cards)),
		})
	}
	return plans
}

// missing are the indices that the layout names and no card has, ascending.
func (l Layout) missing(cards []GPU) []int {
	var missing []int
	for _, e := range l {
		if e.All || e.filtered() {
			continue
		}
		for _, index := range e.Indices {
			if !slices.ContainsFunc(cards, func(c GPU) bool { return c.Index == index }) {
				missing = append(missing, index)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// indices says which cards there are.
func indices(cards []GPU) string {
	switch len(cards) {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("only GPU %d", cards[0].Index)
	}
	var parts []string
	for i := range cards {
		parts = append(parts, fmt.Sprint(cards[i].Index))
	}
	return "GPUs " + enumerate(parts)
}
