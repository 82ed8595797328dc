package shared

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/berth-gpu/berth/internal/core/placement"
)

// memo remembers a bounded number of answers. A question has a few places where its answer can be; when all are occupied, one that was
// not asked for lately is replaced. Goroutines that store at the same time can replace each other's answers, which are computed again
// when they are asked for.
type memo struct {
	buckets []bucket // a power of two
	shift   int      // of a 64-bit hash, so that it becomes an index of buckets
}

const places = 4

type bucket [places]atomic.Pointer[remembered]

// question is what an answer depends on, apart from the topology.
type question struct {
	available placement.Set
	must      placement.Set
	size      int
}

// remembered is immutable but for asked, which is true when its answer was returned since it was last passed over.
type remembered struct {
	question question
	answer   Answer
	asked    atomic.Bool
}

// newMemo returns a memo for that many answers, or for as many as there are questions without must.
func newMemo(gpus, answers int) *memo {
	if gpus < 20 {
		answers = min(answers, gpus<<gpus/2)
	}
	width := bits.Len(uint(max(answers-1, 0) / places))
	return &memo{buckets: make([]bucket, 1<<width), shift: 64 - width}
}

// bytes returns how much memory the memo occupies when it is full.
func (m *memo) bytes() int {
	return len(m.buckets) * int(unsafe.Sizeof(bucket{})+places*unsafe.Sizeof(remembered{}))
}

func (m *memo) bucket(q question) *bucket {
	hash := (uint64(q.available)<<32 | uint64(q.must)) ^ uint64(q.size)*0x9E3779B97F4A7C15
	hash ^= hash >> 32
	hash *= 0xD6E8FEB86659FD93
	hash ^= hash >> 32
	return &m.buckets[hash*0x9E3779B97F4A7C15>>m.shift]
}

func (m *memo) find(q question) *remembered {
	b := m.bucket(q)
	for i := range b {
		if r := b[i].Load(); r != nil && r.question == q {
			if !r.asked.Load() {
				r.asked.Store(true)
			}
			return r
		}
	}
	return nil
}

// store begins its search at another place each time, nth, so that two questions do not replace each other without end
// beside answers that are not asked for.
func (m *memo) store(made *remembered, nth uint64) {
	b := m.bucket(made.question)
	for i := range b {
		if b[i].Load() == nil {
			b[i].Store(made)
			return
		}
	}
	for i := range uint64(places) {
		at := &b[(nth+i)%places]
		if !at.Load().asked.Swap(false) {
			at.Store(made)
			return
		}
	}
	b[nth%places].Store(made)
}
