package shared

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

// Positions translates between the UUIDs of one node's GPUs and their positions in its topology. It is immutable.
type Positions struct{ uuids []gpu.UUID }

// NewPositions takes the UUIDs of a node's GPUs in the order of the rows of its topology. It returns an error for more than
// placement.MaxGPUs GPUs, for an empty UUID, and for one that occurs twice.
func NewPositions(uuids []gpu.UUID) (Positions, error) {
	if len(uuids) > placement.MaxGPUs {
		return Positions{}, fmt.Errorf("number GPUs: the node has %d GPUs, at most %d are supported", len(uuids), placement.MaxGPUs)
	}
	for i, uuid := range uuids {
		if uuid == "" {
			return Positions{}, fmt.Errorf("number GPUs: GPU %d has no UUID", i)
		}
		if first := slices.Index(uuids, uuid); first != i {
			return Positions{}, fmt.Errorf("number GPUs: GPUs %d and %d have the same UUID %s", first, i, uuid)
		}
	}
	return Positions{uuids: slices.Clone(uuids)}, nil
}

// Len returns the number of GPUs.
func (p Positions) Len() int { return len(p.uuids) }

// Set returns the positions of GPUs. It returns an error when the node does not have one of them.
func (p Positions) Set(uuids ...gpu.UUID) (placement.Set, error) {
	var set placement.Set
	for _, uuid := range uuids {
		i := slices.Index(p.uuids, uuid)
		if i < 0 {
			return 0, fmt.Errorf("find GPU %s: it is none of the %d GPUs of the node", uuid, len(p.uuids))
		}
		set |= 1 << i
	}
	return set, nil
}

// Append appends the UUIDs of GPUs to a list, the lowest position first. Positions that the node does not have are ignored.
func (p Positions) Append(list []gpu.UUID, set placement.Set) []gpu.UUID {
	for i := range set.Positions() {
		if i < len(p.uuids) {
			list = append(list, p.uuids[i])
		}
	}
	return list
}
