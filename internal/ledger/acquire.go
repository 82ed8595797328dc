package ledger

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Acquire takes devices for a holder, all or none. It fails with *BarredError,
// which names the first device that cannot be had.
//
// For a Pod (from Allocate, which knows the resource and nothing else) only
// barred devices are refused, and those on which a container lives, which is the same a
// moment earlier. The grant is pending, bars other sizes at once, and goes to the file with
// the next Reconcile only: replacing a file costs up to a millisecond on a disk, and there is
// nothing to lose, as the kubelet writes a file of its own about this very grant before it
// starts the container. For a Claim and Maintenance any holding of another holder is in the
// way, and a grant that could not be written is taken back.
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
	l.notice()
	for _, key := range keys {
		if blocker := l.blocker(holder, key); blocker != nil {
			l.settle() // what was found out about others meanwhile stays true
			return fmt.Errorf("acquire devices: %w", &BarredError{Key: key, Resource: holder.Resource, Holding: blocker.clone()})
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
	if len(changed) == 0 {
		return nil
	}
	defer l.subs.notify()
	if holder.Kind == Pod {
		l.publishPods(holder.Resource, changed)
		return nil
	}
	err := l.save()
	if err != nil {
		for _, key := range changed {
			l.remove(key)
		}
		err = fmt.Errorf("acquire devices: %w", err)
	}
	l.publish()
	return err
}

// blocker looks for what keeps holder from having key; nil when nothing does. Holdings that turn
// out to be dead are removed on the way, and pods that turn out to be forgotten become orphans.
func (l *Ledger) blocker(holder Holder, key gpu.DeviceKey) *Holding {
	for {
		blocking := l.inTheWay(holder, key)
		switch {
		case blocking == nil && (holder.Kind != Pod || !l.check(holder.Resource, key)):
			return nil
		case blocking == nil:
			return l.inTheWay(holder, key)
		case blocking.Holder.Kind != Orphan:
			return blocking
		}
		free := holder.Kind == Pod && blocking.Key == key && !otherUse(blocking.Holder.Resource, holder.Resource)
		if !l.revise(*blocking, free) {
			return blocking
		}
	}
}

// inTheWay finds the first holding that keeps holder from having key, as far as is known.
func (l *Ledger) inTheWay(holder Holder, key gpu.DeviceKey) *Holding {
	if holder.Kind == Pod {
		if _, barred := l.bars.Load().by(holder.Resource, key); !barred {
			return nil
		}
	}
	for _, other := range onCard(l.order, key.GPU) {
		if h := &l.records[other].Holding; h.blocks(holder, key) {
			return h
		}
	}
	return nil
}

// Offered tells the ledger that the kubelet calls these devices of a resource free, as it does
// in GetPreferredAllocation with those that need not be included. Each of them on which a
// container lives is then an orphan's, since the kubelet never offers what it
// remembers; each whose container has ended meanwhile is free. So the answer of
// BarredBy is right at this moment, however old the last Reconcile is. Devices that
// nobody holds cost nothing, unless the last Reconcile had no checkpoint.
func (l *Ledger) Offered(resource string, keys []gpu.DeviceKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notice()
	for _, key := range keys {
		l.check(resource, key)
	}
	l.settle()
}

// notice takes in the containers on devices that nobody is known to hold. There are such only when
// the ledger cannot know what it missed: since the last Reconcile had no checkpoint.
func (l *Ledger) notice() {
	if l.certain {
		return
	}
	all, _ := l.look()
	found := map[gpu.DeviceKey]bool{}
	for _, c := range all {
		for _, key := range c.Keys {
			found[key] = l.records[key] == nil
		}
	}
	changed := false
	for _, key := range slices.SortedFunc(maps.Keys(found), gpu.CompareKeys) {
		unknown := Holding{Key: key, Since: l.deps.Clock.Now(), Holder: Holder{Kind: Pod}}
		if users := l.users(unknown); found[key] && len(users) > 0 {
			l.put(orphanOf(unknown, users))
			changed = true
		}
	}
	if changed {
		l.publish()
	}
}

// check looks who uses a device that the kubelet calls free as a resource. If it gave it out as
// another one, that says nothing. It reports whether it changed anything.
func (l *Ledger) check(resource string, key gpu.DeviceKey) bool {
	r, held := l.records[key]
	if !held || r.Holder.Kind != Pod && r.Holder.Kind != Orphan || otherUse(r.Holder.Resource, resource) {
		return false
	}
	return l.revise(r.Holding, true)
}

// revise looks who really uses a device that a pod or an orphan holds: if anybody, that is an
// orphan. Without anybody an orphan's hold is over if the kubelet is known to have forgotten
// it: it calls the device free, or its checkpoint does not list it; otherwise it is a pod that
// is between two containers. It reports whether it changed anything.
func (l *Ledger) revise(old Holding, free bool) bool {
	next := old
	users := l.users(old)
	switch {
	case len(users) > 0:
		next = orphanOf(old, users)
	case old.Holder.Kind == Orphan && (free || l.certain):
		l.remove(old.Key)
		l.publish()
		return true
	default:
		next = old.lifeless()
	}
	if equal(old, next) {
		return false
	}
	l.put(next)
	l.publish()
	return true
}

// lifeless is a holding whose containers have all ended, and which the kubelet may remember.
func (h Holding) lifeless() Holding {
	h.Holder.Kind, h.Live, h.Uncounted = Pod, nil, false
	return h
}

// users are the containers that live on a held device at this moment, of one pod: the holder's
// if it has any. When nobody can be asked they are those of the last Reconcile.
func (l *Ledger) users(h Holding) []Container {
	all, ok := l.look()
	if !ok {
		var last []Container
		for _, id := range h.Live {
			last = append(last, Container{ID: id, PodUID: h.Holder.PodUID})
		}
		return last
	}
	byPod := map[string][]Container{}
	for _, c := range all {
		if c.on(h) {
			byPod[c.PodUID] = append(byPod[c.PodUID], c)
		}
	}
	if users := byPod[h.Holder.PodUID]; len(users) > 0 {
		return users
	}
	for _, pod := range slices.Sorted(maps.Keys(byPod)) {
		return byPod[pod]
	}
	return nil
}

// on tells whether the container uses what h is about.
func (c *Container) on(h Holding) bool {
	if slices.Contains(c.Keys, h.Key) {
		return true
	}
	if c.PodUID != h.Holder.PodUID {
		return false
	}
	// An orphan is particular containers; when those are dead it is over, and one that
	// starts again under the same name has got other devices.
	if h.Holder.Kind == Orphan || len(c.Keys) > 0 {
		return slices.Contains(h.Live, c.ID)
	}
	return c.Name == "" || slices.Contains(h.Containers, c.Name) || slices.Contains(h.Live, c.ID)
}

// look is Deps.Look, remembered for a moment.
func (l *Ledger) look() ([]Container, bool) {
	if l.deps.Look == nil {
		return nil, false
	}
	if !l.seenAt.IsZero() && l.deps.Clock.Since(l.seenAt) < l.deps.LookAge {
		return l.seen, true
	}
	seen, err := l.deps.Look()
	if err != nil {
		l.deps.Log.Warn("ledger cannot see which containers live", "error", err)
		return nil, false
	}
	l.seen, l.seenAt = seen, l.deps.Clock.Now()
	return seen, true
}

// orphanOf turns a holding into that of an orphan.
func orphanOf(old Holding, users []Container) Holding {
	h := Holding{Key: old.Key, Since: old.Since, Holder: Holder{Kind: Orphan, PodUID: users[0].PodUID}}
	if old.Holder.PodUID == h.Holder.PodUID {
		h = old.clone()
		h.Holder.Kind, h.Pending, h.Live = Orphan, false, nil
	}
	for _, c := range users {
		h.Live = union(h.Live, c.ID)
		if c.Name != "" {
			h.Containers = union(h.Containers, c.Name)
		}
		if c.Pod != "" {
			h.Holder.Namespace, h.Holder.Pod = c.Namespace, c.Pod
		}
	}
	if h.Holder.Container == "" && len(h.Containers) > 0 {
		h.Holder.Container = h.Containers[0]
	}
	return h
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
// fails with *BarredError when another claim or maintenance has one, in whatever size; the
// others are adopted all the same.
func (l *Ledger) Adopt(holder Holder, keys []gpu.DeviceKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys = slices.SortedFunc(slices.Values(keys), gpu.CompareKeys)
	now := l.deps.Clock.Now()
	var refused error
	for _, key := range keys {
		if old, ok := l.records[key]; ok && old.Holder.same(holder) {
			continue
		}
		if other := l.reserved(holder, key); other != nil {
			if refused == nil {
				refused = fmt.Errorf("adopt devices: %w", &BarredError{Key: key, Holding: other.clone()})
			}
			continue
		}
		l.put(Holding{Key: key, Holder: holder, Since: now})
	}
	l.publish()
	l.settle()
	return refused
}

// reserved finds what another claim or maintenance holds of a device; nil for nothing.
func (l *Ledger) reserved(holder Holder, key gpu.DeviceKey) *Holding {
	for _, other := range onCard(l.order, key.GPU) {
		h := &l.records[other].Holding
		if (h.Holder.Kind == Claim || h.Holder.Kind == Maintenance) && h.blocks(holder, key) {
			return h
		}
	}
	return nil
}
