package ledger

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// undo has the records before a change, by key; nil for one that did not exist.
type undo struct {
	keys    []gpu.DeviceKey
	records []*record
}

func (u *undo) note(key gpu.DeviceKey, old *record) {
	if !slices.Contains(u.keys, key) {
		u.keys, u.records = append(u.keys, key), append(u.records, old)
	}
}

// change and drop are put and remove that can be reverted.
func (l *Ledger) change(u *undo, h Holding) {
	u.note(h.Key, l.records[h.Key])
	l.put(h)
}

func (l *Ledger) drop(u *undo, key gpu.DeviceKey) {
	u.note(key, l.records[key])
	l.remove(key)
}

// durably makes a change of claims or maintenance that is in the file when it returns without an error, and not in force
// when it returns with one. do runs with the mutex held, and changes nothing when it fails. These changes are made one
// after the other, so that none is based on another that is reverted later.
func (l *Ledger) durably(do func(*undo) error) error {
	if err := l.mayWrite(); err != nil {
		return err
	}
	l.durable.Lock()
	defer l.durable.Unlock()
	if err := l.refusal(); err != nil {
		return err
	}
	var u undo
	l.mu.Lock()
	err := do(&u)
	l.publish()
	l.mu.Unlock()
	switch {
	case err != nil:
		return err
	case len(u.keys) > 0:
	case l.dirty():
		return l.save() // What the holder has may be in memory only, since AdoptAll.
	default:
		return l.store.confirm() // The memory of a ledger that was superseded may be old.
	}
	defer l.subs.Set()
	if err := l.save(); err != nil {
		l.revert(&u)
		return err
	}
	return nil
}

// revert puts back the records from before a change. Nothing else changes those of claims and maintenance meanwhile.
func (l *Ledger) revert(u *undo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range u.keys {
		l.remove(key)
	}
	for _, old := range u.records {
		if old != nil {
			l.put(old.Holding)
		}
	}
	l.publish()
}

// inMemory makes a change that stays in force when it cannot be written. Only a ledger that is not the writer refuses it.
func (l *Ledger) inMemory(do func()) error {
	if err := l.mayWrite(); err != nil {
		return err
	}
	l.durable.Lock()
	defer l.durable.Unlock()
	l.mu.Lock()
	before := l.edits
	do()
	changed := l.edits != before
	l.publish()
	l.mu.Unlock()
	if !changed {
		return l.store.confirm()
	}
	err := l.save()
	l.subs.Set()
	return err
}

// acquireDurably is for claims and maintenance: the grant is in the file when it returns.
func (l *Ledger) acquireDurably(holder gpu.Holder, pods []gpu.Pod, devices []ClaimDevice) error {
	devices = sorted(devices)
	if err := validKeys(devices); err != nil {
		return err
	}
	// The containers are read only when an orphan, which may have ended, is in the way, or the holder has further devices, and without a
	// lock.
	var seen *NodeView
	for {
		again := false
		err := l.durably(func(u *undo) error {
			l.claimed(holder)
			orphan, err := l.firstInTheWay(holder, devices, seen)
			if again = orphan && seen == nil; err != nil {
				return err
			}
			further := l.further(holder, devices)
			if again = len(further) > 0 && seen == nil; again {
				return nil
			}
			for _, key := range further {
				if !l.usedBy(&l.records[key].Holding, seen) {
					l.drop(u, key)
				}
			}
			for _, d := range devices {
				if r := l.records[d.Key]; r == nil || !r.Holder.Same(holder) {
					l.change(u, l.newHolding(holder, d.Key))
				}
			}
			l.describe(u, holder, pods, devices)
			return nil
		})
		if !again {
			return err
		}
		now := l.observeAll(nil)
		seen = &now
	}
}

// further returns the devices that a claim has besides these, in order: those of an earlier allocation of it.
func (l *Ledger) further(holder gpu.Holder, devices []ClaimDevice) []gpu.DeviceKey {
	if holder.Kind != gpu.HolderClaim {
		return nil
	}
	var keys []gpu.DeviceKey
	for _, key := range l.order {
		if l.records[key].Holder.Same(holder) && !slices.ContainsFunc(devices, func(d ClaimDevice) bool { return d.Key == key }) {
			keys = append(keys, key)
		}
	}
	return keys
}

// usedBy reports whether a running container may use the device of a claim: it was given the device, or it is one of the claim's pods and
// has a device node of it. While the containers are not known, one may.
func (l *Ledger) usedBy(h *Holding, seen *NodeView) bool {
	if seen.ContainersErr != nil {
		return true
	}
	of := func(key gpu.DeviceKey) bool { return key.Overlaps(h.Key) }
	return slices.ContainsFunc(seen.Containers, func(c Container) bool {
		return slices.ContainsFunc(c.Keys, of) || (h.Pods == nil || h.has(c.PodUID)) && slices.ContainsFunc(c.Open, of)
	})
}

// firstInTheWay returns why the holder cannot have the devices, and whether that is an orphan. It removes the
// orphans that have ended by what was seen.
func (l *Ledger) firstInTheWay(holder gpu.Holder, devices []ClaimDevice, seen *NodeView) (orphan bool, refused error) {
	for _, d := range devices {
		for {
			h := l.inTheWay(holder, gpu.Located{Key: d.Key, At: d.Placement})
			if h == nil {
				break
			}
			orphan = h.Holder.Kind == gpu.HolderOrphan
			if !orphan || seen == nil || !l.revisit(newJoin(l, *seen), h.Key, false) {
				return orphan, &BlockedError{Key: d.Key, Holding: h.clone()}
			}
		}
	}
	return false, nil
}

// newHolding returns a holding with the placement of a MIG device, which is not known any more when maintenance has removed it.
func (l *Ledger) newHolding(holder gpu.Holder, key gpu.DeviceKey) Holding {
	at := fromScan(gpu.Located{Key: key}, l.deps.Placement).At
	return Holding{Holding: gpu.Holding{Key: key, Holder: holder, Since: l.deps.Clock.Now(), Placement: at}}
}

// Release ends the holdings of the holder on the keys, or all of them when keys is nil. It ignores devices that the
// holder does not have. It is for claims and maintenance; Reconcile releases pods. An error means that the release is
// in memory only, or, with ErrFollows, not made.
func (l *Ledger) Release(holder gpu.Holder, keys []gpu.DeviceKey) error {
	if l.leadAgain(); l.store.follows() {
		return fmt.Errorf("release devices: %w", ErrFollows)
	}
	l.durable.Lock()
	defer l.durable.Unlock()
	l.mu.Lock()
	if keys == nil {
		keys = l.order
	}
	changed := false
	for _, key := range slices.Clone(keys) {
		if held, ok := l.records[key]; ok && held.Holder.Same(holder) {
			l.remove(key)
			changed = true
		}
	}
	if changed {
		l.publish()
	}
	l.mu.Unlock()
	err := l.store.confirm()
	if changed {
		l.subs.Set()
		err = l.save()
	}
	if err != nil {
		return fmt.Errorf("release devices: %w", err)
	}
	return nil
}

// devicesOf returns keys as the devices of a holder, of which nothing else is known.
func devicesOf(keys []gpu.DeviceKey) []ClaimDevice {
	devices := make([]ClaimDevice, 0, len(keys))
	for _, key := range keys {
		devices = append(devices, ClaimDevice{Key: key})
	}
	return devices
}

func validKeys(devices []ClaimDevice) error {
	for _, d := range devices {
		if !d.Key.Valid() {
			return fmt.Errorf("key %q identifies no device", d.Key)
		}
	}
	return nil
}

// sorted returns the devices in the order of their keys.
func sorted(devices []ClaimDevice) []ClaimDevice {
	return slices.SortedStableFunc(slices.Values(devices), func(a, b ClaimDevice) int { return gpu.CompareKeys(a.Key, b.Key) })
}
