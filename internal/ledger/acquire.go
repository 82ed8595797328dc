package ledger

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Acquire takes devices for a holder, all or none. It fails with *BarredError,
// which names the first device that cannot be had.
//
// For a Pod (from Allocate, which knows the resource and nothing else) only
// barred devices are refused, and those on which a container lives, which is the same a
// moment earlier. The grant is pending. It stands in memory even if it could not be written,
// which Faults shows: the kubelet remembers it anyway. For a Claim and Maintenance any
// holding is in the way, and a grant that could not be written is taken back.
//
// Taking again what the same holder has is no error.
func (l *Ledger) Acquire(holder Holder, keys []gpu.DeviceKey) error {
	if holder.Kind != Pod && holder.Kind != Claim && holder.Kind != Maintenance {
		return fmt.Errorf("acquire devices: a holder of kind %q cannot ask for devices", holder.Kind)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder.Kind != Pod && !l.store.leads() {
		return fmt.Errorf("acquire devices: %w", ErrSuperseded)
	}
	keys = slices.Clone(keys)
	slices.SortFunc(keys, gpu.CompareKeys)
	keys = slices.Compact(keys)
	for _, key := range keys {
		if blocker, ok := l.blocker(holder, key); ok {
			l.settle() // what was found out about others meanwhile stays true
			return fmt.Errorf("acquire devices: %w", &BarredError{Key: key, Holding: blocker})
		}
	}
	return l.grant(holder, keys)
}

func (l *Ledger) grant(holder Holder, keys []gpu.DeviceKey) error {
	now := l.deps.Clock.Now()
	changed := keys[:0:0]
	for _, key := range keys {
		if old, ok := l.records[key]; ok && holder.Kind != Pod && old.Holder.same(holder) {
			continue
		}
		l.put(Holding{Key: key, Holder: holder, Since: now, Pending: holder.Kind == Pod})
		changed = append(changed, key)
	}
	err := l.save()
	if err != nil && holder.Kind != Pod {
		for _, key := range changed {
			l.remove(key)
		}
		l.publish()
		return fmt.Errorf("acquire devices: %w", err)
	}
	// Pods bar nothing, so the table stays as it is on the hot path.
	if holder.Kind != Pod {
		l.publish()
	}
	if len(changed) > 0 {
		l.subs.notify()
	}
	return nil
}

// blocker looks for what keeps holder from having key. Holdings that turn out to be dead
// are removed on the way, and pods that turn out to be forgotten become orphans.
func (l *Ledger) blocker(holder Holder, key gpu.DeviceKey) (Holding, bool) {
	for {
		bar, ok := l.bars.Load().by(key)
		if !ok || bar.Key == key && bar.Holder.same(holder) {
			break
		}
		if bar.Holder.Kind != Orphan || l.lives(bar) {
			return bar.clone(), true
		}
		l.remove(bar.Key)
		l.publish()
	}
	if holder.Kind != Pod {
		return l.podOn(key)
	}
	if held, ok := l.records[key]; ok && held.Holder.Kind == Pod && len(held.Live) > 0 && l.lives(held.Holding) {
		// The kubelet offers a device on which its own container lives: it has
		// forgotten or dropped that pod, and we had not noticed yet.
		orphan := held.Holding
		orphan.Holder.Kind = Orphan
		l.put(orphan)
		l.publish()
		return orphan.clone(), true
	}
	return Holding{}, false
}

// Offered tells the ledger that the kubelet calls these devices free, as it does in
// GetPreferredAllocation with those that need not be included. Each of them that is
// held by a living container is then an orphan's, since the kubelet never offers what it
// remembers; each whose container has ended meanwhile is free. So the answer of
// BarredBy is right at this moment, however old the last Reconcile is. Devices that
// nobody was seen on cost nothing.
func (l *Ledger) Offered(keys []gpu.DeviceKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	for _, key := range keys {
		r, ok := l.records[key]
		if !ok || r.Holder.Kind != Orphan && (r.Holder.Kind != Pod || len(r.Live) == 0) {
			continue
		}
		h := r.Holding
		switch lives := l.lives(h); {
		case lives && h.Holder.Kind == Orphan:
			continue
		case lives:
			h.Holder.Kind = Orphan
			l.put(h)
		case h.Holder.Kind == Orphan:
			l.remove(key)
		default:
			h.Live = nil
			l.put(h)
		}
		changed = true
	}
	if changed {
		l.publish()
		l.settle()
	}
}

// podOn finds a pod's holding that shares silicon with key.
func (l *Ledger) podOn(key gpu.DeviceKey) (Holding, bool) {
	for _, other := range l.order {
		if held := l.records[other]; held.Holder.Kind == Pod && overlap(key, other) {
			return held.clone(), true
		}
	}
	return Holding{}, false
}

// lives asks the node whether a process still uses the holding. Without
// anybody to ask, what the last Reconcile saw counts.
func (l *Ledger) lives(h Holding) bool {
	if l.deps.Alive == nil {
		return len(h.Live) > 0
	}
	return slices.ContainsFunc(h.Live, l.deps.Alive)
}

// settle writes and tells what has changed, if anything has.
func (l *Ledger) settle() {
	if l.dirty {
		l.save()
		l.subs.notify()
	}
}

// Release ends the holder's hold on the keys, or on all that it holds when keys is nil.
// What it does not hold is left alone. For claims and maintenance; pods are released by
// Reconcile. An error means that the release stands in memory only.
func (l *Ledger) Release(holder Holder, keys []gpu.DeviceKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if keys == nil {
		keys = l.order
	}
	changed := false
	for _, key := range slices.Clone(keys) {
		if held, ok := l.records[key]; ok && held.Holder.same(holder) {
			l.remove(key)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	l.publish()
	l.subs.notify()
	if err := l.save(); err != nil {
		return fmt.Errorf("release devices: %w", err)
	}
	return nil
}

// Adopt records as fact that the holder has the devices, for what was found to exist
// already: claims that the kubelet says are prepared. It overrides pods and orphans, and
// fails with *BarredError when another claim or maintenance has one; the others
// are adopted all the same.
func (l *Ledger) Adopt(holder Holder, keys []gpu.DeviceKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys = slices.SortedFunc(slices.Values(keys), gpu.CompareKeys)
	now := l.deps.Clock.Now()
	var refused error
	for _, key := range keys {
		old, ok := l.records[key]
		if ok && (old.Holder.Kind == Claim || old.Holder.Kind == Maintenance) {
			if !old.Holder.same(holder) && refused == nil {
				refused = fmt.Errorf("adopt devices: %w", &BarredError{Key: key, Holding: old.clone()})
			}
			continue
		}
		l.put(Holding{Key: key, Holder: holder, Since: now})
	}
	l.publish()
	l.settle()
	return refused
}
