package deviceplugin

import (
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// shares chooses among devices of which a card may have several: replicas, MIG devices, and
// whole cards beside them. It never changes.
type shares struct {
	policy placement.Policy
	// card and part are numbers by device: of its card, and of the MIG device or card that
	// it is or is a share of. Both count in the order of the devices.
	card, part []placement.Share
	// cards and parts count the offered devices of each.
	cards, parts []int
	// nested are the cards that have several parts, of which some are shared.
	nested []int
	// gone and mps tell devices that are no longer offered, and MPS shares.
	gone, mps []bool
	anyMPS    bool
	// buffers are of type *placement.ShareBuffer.
	buffers sync.Pool
}

func newShares(devices []device, policy placement.Policy) *shares {
	s := &shares{policy: placement.Distributed, gone: make([]bool, len(devices)), mps: make([]bool, len(devices))}
	if policy == placement.Packed {
		s.policy = policy
	}
	cards, parts := map[gpu.UUID]int{}, map[gpu.UUID]int{}
	for i := range devices {
		d := &devices[i]
		card := numberOf(cards, d.Key.GPU, &s.cards)
		part := numberOf(parts, d.Key.Device(), &s.parts)
		s.card, s.part = append(s.card, placement.Share{GPU: card}), append(s.part, placement.Share{GPU: part})
		if s.gone[i] = !d.vanished.IsZero(); !s.gone[i] {
			s.cards[card]++
			s.parts[part]++
		}
		s.mps[i] = d.Mode == offer.MPS
		s.anyMPS = s.anyMPS || s.mps[i]
	}
	for i := range devices {
		card, part := s.card[i].GPU, s.part[i].GPU
		if s.parts[part] > 1 && s.cards[card] > s.parts[part] && !slices.Contains(s.nested, card) {
			s.nested = append(s.nested, card)
		}
	}
	s.buffers.New = func() any { return &placement.ShareBuffer{} }
	return s
}

// numberOf counts names, and makes room for the new one.
func numberOf(numbers map[gpu.UUID]int, name gpu.UUID, counts *[]int) int {
	n, known := numbers[name]
	if !known {
		n = len(*counts)
		numbers[name] = n
		*counts = append(*counts, 0)
	}
	return n
}

// choose completes must with devices of pool to size; both are ascending and have nothing in
// common. A container can be the client of one MPS daemon only, and each card has its own, so
// MPS shares come from one card where that is possible.
func (s *shares) choose(must, pool []int, size int) ([]int, bool) {
	if s.anyMPS && size > 1 {
		if chosen, ok := s.chooseApart(must, pool, size); ok {
			return chosen, true
		}
	}
	return s.spread(must, pool, size)
}

// fitsOneGPU reports whether size devices can be chosen so that no MPS replica is combined with a device of another GPU.
func (s *shares) fitsOneGPU(must, pool []int, size int) bool {
	if !s.anyMPS || size <= 1 {
		return true
	}
	_, ok := s.chooseApart(must, pool, size)
	return ok
}

// chooseApart takes devices without MPS if they suffice, and otherwise MPS shares of one card.
func (s *shares) chooseApart(must, pool []int, size int) ([]int, bool) {
	isMPS := func(i int) bool { return s.mps[i] }
	if others := slices.DeleteFunc(slices.Clone(pool), isMPS); !slices.ContainsFunc(must, isMPS) && len(must)+len(others) >= size {
		return s.spread(must, others, size)
	}
	load, _ := s.load(must, pool)
	enough := make([]int, len(s.cards))
	for _, i := range pool {
		if s.mps[i] {
			enough[s.card[i].GPU]++
		}
	}
	best := -1
	for card, n := range enough {
		elsewhere := func(i int) bool { return s.card[i].GPU != card || !s.mps[i] }
		if slices.ContainsFunc(must, elsewhere) || len(must)+n < size {
			continue
		}
		if best < 0 || s.policy == placement.Distributed && load[card] < load[best] || s.policy == placement.Packed && load[card] > load[best] {
			best = card
		}
	}
	if best < 0 {
		return nil, false
	}
	mine := slices.DeleteFunc(slices.Clone(pool), func(i int) bool { return s.card[i].GPU != best || !s.mps[i] })
	return merge(must, mine[:size-len(must)]), true
}

// load counts what others have of each card and part: all but must and pool.
func (s *shares) load(must, pool []int) (cards, parts []int) {
	cards, parts = slices.Clone(s.cards), slices.Clone(s.parts)
	for _, list := range [][]int{must, pool} {
		for _, i := range list {
			if !s.gone[i] {
				cards[s.card[i].GPU]--
				parts[s.part[i].GPU]--
			}
		}
	}
	return cards, parts
}

// spread chooses by policy among the cards, and by the same policy among the MIG devices of
// a card that are shared.
func (s *shares) spread(must, pool []int, size int) ([]int, bool) {
	buffer := s.buffers.Get().(*placement.ShareBuffer)
	defer s.buffers.Put(buffer)
	cards, parts := s.load(must, pool)
	request := placement.ShareRequest{
		Devices: s.card, Available: slices.Concat(must, pool), Must: must,
		Load: cards, Size: size, Policy: s.policy, Buffer: buffer,
	}
	chosen, err := placement.ChooseShares(request)
	if err != nil {
		return nil, false
	}
	chosen = slices.Clone(chosen)
	request.Devices, request.Load = s.part, parts
	for _, card := range s.nested {
		elsewhere := func(i int) bool { return s.card[i].GPU != card }
		others := slices.DeleteFunc(slices.Clone(chosen), func(i int) bool { return !elsewhere(i) })
		if request.Size = len(chosen) - len(others); request.Size == 0 {
			continue
		}
		request.Available = slices.DeleteFunc(slices.Concat(must, pool), elsewhere)
		request.Must = slices.DeleteFunc(slices.Clone(must), elsewhere)
		mine, err := placement.ChooseShares(request)
		if err != nil {
			return nil, false
		}
		chosen = merge(others, mine)
	}
	return chosen, true
}
