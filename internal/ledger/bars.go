package ledger

import (
	"maps"

	"github.com/berth-gpu/berth/internal/gpu"
)

// barTable answers what bars a key. It is never changed after it was published, so
// that readers need no lock.
type barTable struct {
	// held are the holdings that bar, by their own key.
	held map[gpu.DeviceKey]Holding
	// above has, for each key of which a part is barred, the holding of the first such part.
	above map[gpu.DeviceKey]Holding
}

// newBarTable takes records in the order of keys.
func newBarTable(order []gpu.DeviceKey, records map[gpu.DeviceKey]*record) *barTable {
	t := &barTable{}
	for _, key := range order {
		h := records[key].Holding
		if !h.bars() {
			continue
		}
		if t.held == nil {
			t.held, t.above = map[gpu.DeviceKey]Holding{}, map[gpu.DeviceKey]Holding{}
		}
		t.held[key] = h
		for part := range wholes(key) {
			if _, ok := t.above[part]; !ok {
				t.above[part] = h
			}
		}
	}
	return t
}

// wholes yields the devices that key is a part of: the device unshared, and the GPU.
func wholes(key gpu.DeviceKey) func(func(gpu.DeviceKey) bool) {
	return func(yield func(gpu.DeviceKey) bool) {
		if key.Share > 0 && !yield(gpu.DeviceKey{GPU: key.GPU, MIG: key.MIG}) {
			return
		}
		if key.MIG != "" {
			yield(gpu.DeviceKey{GPU: key.GPU})
		}
	}
}

func (t *barTable) by(key gpu.DeviceKey) (Holding, bool) {
	if len(t.held) == 0 {
		return Holding{}, false
	}
	if h, ok := t.held[key]; ok {
		return h, true
	}
	if key.Share > 0 {
		if h, ok := t.held[gpu.DeviceKey{GPU: key.GPU, MIG: key.MIG}]; ok {
			return h, true
		}
	}
	if key.MIG != "" {
		if h, ok := t.held[gpu.DeviceKey{GPU: key.GPU}]; ok {
			return h, true
		}
	}
	h, ok := t.above[key]
	return h, ok
}

// overlap tells whether two keys share silicon.
func overlap(a, b gpu.DeviceKey) bool {
	if a == b {
		return true
	}
	for whole := range wholes(a) {
		if whole == b {
			return true
		}
	}
	for whole := range wholes(b) {
		if whole == a {
			return true
		}
	}
	return false
}

// BarredBy tells what keeps a device from being given out: a holding of any kind
// but Pod on it, on a part of it, or on the whole that it is a part of. It takes no
// lock, allocates nothing, and costs the same however much is held.
func (l *Ledger) BarredBy(key gpu.DeviceKey) (Holding, bool) { return l.bars.Load().by(key) }

// Barred are all holdings that bar, by key. The map is the caller's.
func (l *Ledger) Barred() map[gpu.DeviceKey]Holding {
	barred := maps.Clone(l.bars.Load().held)
	if barred == nil {
		barred = map[gpu.DeviceKey]Holding{}
	}
	return barred
}

// publish makes the records visible to BarredBy.
func (l *Ledger) publish() { l.bars.Store(newBarTable(l.order, l.records)) }
