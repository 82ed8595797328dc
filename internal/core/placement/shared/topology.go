package shared

import (
	"sync"
	"sync/atomic"

	"github.com/berth-gpu/berth/internal/core/placement"
)

// Answer is a choice of GPUs and what it is worth.
type Answer struct {
	// GPUs are the positions that placement's Choose returns.
	GPUs placement.Set
	// Score is their value by themselves, by which nodes can be compared: Score.Bottleneck is the slowest link of a ring or tree over them.
	Score placement.Score
	// Before and After are the fully linked sets among the available GPUs before and after the choice, compared by Packing.Compare.
	Before placement.Packing
	After  placement.Packing
}

// Topology answers questions about all nodes of one form. GPUs are named by their position.
type Topology struct {
	cache *Cache
	form  placement.Form

	preparing sync.Mutex
	state     atomic.Pointer[prepared] // nil before the first preparation and after an eviction
}

// prepared is what an eviction drops.
type prepared struct {
	node    chooser
	answers *memo
	bytes   int
	asked   atomic.Bool // since the hand of the cache passed
}

// GPUs returns the number of GPUs of each node.
func (t *Topology) GPUs() int { return t.form.GPUs() }

// Choose returns the choice of placement.Node for the same arguments, and its errors. A question with an error is not remembered, and
// makes a text: compare size with available.Len() first where most nodes have too few GPUs.
func (t *Topology) Choose(available, must placement.Set, size int) (Answer, error) {
	q := question{available: available, must: must, size: size}
	p := t.state.Load()
	if p != nil {
		if found := p.answers.find(q); found != nil {
			p.touch()
			return found.answer, nil
		}
	}
	return t.compute(q)
}

// compute answers a question and remembers the answer.
func (t *Topology) compute(q question) (Answer, error) {
	p, err := t.prepared()
	if err != nil {
		return Answer{}, err
	}
	p.touch()
	chosen, err := p.node.Choose(q.available, q.must, q.size)
	if err != nil {
		return Answer{}, err
	}
	nth := t.cache.choices.Add(1)
	made := &remembered{question: q, answer: Answer{
		GPUs: chosen, Score: p.node.Score(chosen),
		Before: p.node.Packing(q.available), After: p.node.Packing(q.available &^ chosen),
	}}
	p.answers.store(made, nth)
	return made.answer, nil
}

// prepared returns the node and the answers, and prepares them if need be. Several goroutines that need the same topology wait for one
// preparation.
func (t *Topology) prepared() (*prepared, error) {
	if p := t.state.Load(); p != nil {
		return p, nil
	}
	t.preparing.Lock()
	defer t.preparing.Unlock()
	if p := t.state.Load(); p != nil {
		return p, nil
	}
	node, err := t.cache.prepare(t.form)
	if err != nil {
		return nil, err
	}
	t.cache.preparations.Add(1)
	p := &prepared{node: node, answers: newMemo(t.form.GPUs(), t.cache.answers)}
	p.bytes = node.Bytes() + p.answers.bytes()
	t.cache.keep(t, p)
	return p, nil
}

// touch writes only when there is something to change: goroutines that only read share the memory.
func (p *prepared) touch() {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
}
