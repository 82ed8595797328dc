package deviceplugin

import (
	"sync/atomic"

	"github.com/berth-gpu/berth/internal/core/placement"
)

// memo is a chooser that caches its last answers. Few sets of GPUs of a node are free at one time or another, and a choice among 16 GPUs
// compares up to 12,870 sets.
type memo struct {
	chooser chooser
	slots   [64]atomic.Pointer[chosen]
}

// chosen is a request with its answer.
type chosen struct {
	available placement.Set
	must      placement.Set
	size      int
	answer    placement.Set
}

// Choose implements chooser. It may be called by several goroutines.
func (m *memo) Choose(available, must placement.Set, size int) (placement.Set, error) {
	slot := &m.slots[(uint32(available)*0x9E3779B1^uint32(must)*0x85EBCA6B^uint32(size)*0xC2B2AE35)>>26]
	if c := slot.Load(); c != nil && c.available == available && c.must == must && c.size == size {
		return c.answer, nil
	}
	answer, err := m.chooser.Choose(available, must, size)
	if err == nil {
		slot.Store(&chosen{available: available, must: must, size: size, answer: answer})
	}
	return answer, err
}
