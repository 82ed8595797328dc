package ledger

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Acquire takes devices for a holder, all or none. It fails with *BlockedError, which names the first device that is
// blocked, or with *listedError.
//
// For a Pod (from Allocate, which only knows the resource) the devices are refused that are blocked, that a container
// uses, and that the kubelet's checkpoint lists for another running pod; see the package comment. The grant is pending,
// blocks other sizes at once, and is written to the file only by the next Reconcile: replacing a file takes up to a
// millisecond on a disk, and nothing is lost, because the kubelet writes the grant to its checkpoint before it starts
// the container. A Claim or Maintenance is refused by any holding of another holder, and its grant is reverted when it
// cannot be written.
//
// Acquiring devices that the holder already has is not an error. AcquireClaim also records the pods of a claim.
func (l *Ledger) Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error {
	return l.acquire(holder, "", keys)
}

// Allocate acquires devices for a pod that the kubelet has not named yet. Grant is the ID that identifies the container
// that gets the devices; see Holding.Grants.
func (l *Ledger) Allocate(resource, grant string, keys []gpu.DeviceKey) error {
	return l.acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: resource}, grant, keys)
}

func (l *Ledger) acquire(holder gpu.Holder, grant string, keys []gpu.DeviceKey) error {
	if len(keys) > 1 {
		keys = slices.Clone(keys)
		slices.SortFunc(keys, gpu.CompareKeys)
		keys = slices.Compact(keys)
	}
	var err error
	switch holder.Kind {
	case gpu.HolderPod:
		if i := slices.IndexFunc(keys, func(key gpu.DeviceKey) bool { return key.Placement.Known() }); i >= 0 {
			return fmt.Errorf("acquire devices: the kubelet knows no device %s", keys[i])
		}
		err = l.acquireForPod(holder, grant, keys)
	case gpu.HolderClaim, gpu.HolderMaintenance:
		err = l.acquireDurably(holder, nil, devicesOf(keys))
	default:
		err = fmt.Errorf("a holder of kind %q cannot acquire devices", holder.Kind)
	}
	if err != nil {
		return fmt.Errorf("acquire devices: %w", err)
	}
	return nil
}

// notifyAfter is how long after an Allocate or a preference the subscribers are signalled: the kubelet waits for the
// response, and calls for a pod's containers and for several pods one after the other. No subscriber needs the change
// earlier, because the device plugin reads the ledger in each call.
const notifyAfter = 10 * time.Millisecond

// acquireForPod reads what the decision needs without the mutex, and only when one of the devices is
// not known to be free.
func (l *Ledger) acquireForPod(holder gpu.Holder, grant string, keys []gpu.DeviceKey) error {
	l.mu.Lock()
	if !l.blind() && l.free(holder.Resource, keys) {
		l.grant(holder, grant, keys, nil)
		l.mu.Unlock()
		l.subs.SetAfter(notifyAfter)
		return nil
	}
	l.mu.Unlock()
	var dropped []Question
	for round := 1; ; round++ {
		seen := l.observe(keys, dropped) // returns with the mutex held
		before := l.edits
		questions, err := l.tryForPod(holder, grant, keys, seen)
		changed := l.edits != before
		l.mu.Unlock()
		if err == nil || changed {
			l.subs.SetAfter(notifyAfter) // What was found about other holders remains valid.
		}
		if err == nil {
			return nil
		}
		if len(questions) == 0 || round == 2 || l.deps.Ask == nil {
			return err
		}
		dropped = l.deps.Ask(questions)
	}
}

// free reports whether the ledger has no reason to refuse the devices to a pod.
func (l *Ledger) free(resource string, keys []gpu.DeviceKey) bool {
	table := l.blocks.Load()
	return !slices.ContainsFunc(keys, func(key gpu.DeviceKey) bool {
		_, blocked := table.by(resource, &gpu.Located{Key: key}, l.deps.Placement)
		return blocked || l.records[key] != nil
	})
}

// tryForPod grants the devices, or returns why not. With a *listedError it returns the questions whose answers may
// change that.
func (l *Ledger) tryForPod(holder gpu.Holder, grant string, keys []gpu.DeviceKey, seen NodeView) ([]Question, error) {
	j := newJoin(l, seen)
	defer l.publish()
	l.notice(j)
	passing := map[gpu.DeviceKey][]string{}
	listed := collectEvidence(j.view.Assignments, keys, l.deps.facts)
	var questions []Question
	var refused error
	for _, key := range keys {
		if blocking := l.blocker(j, holder, key); blocking != nil {
			return nil, &BlockedError{Key: key, Resource: holder.Resource, Holding: blocking.clone()}
		}
		r := l.records[key]
		if r == nil {
			continue
		}
		e := evidence{readable: j.checkpoint, entries: j.view.marked(key, listed[key]), offered: r.offered, passed: r.passed}
		x := e.objection()
		if x == nil {
			if l.revisit(j, key, true); l.records[key] != nil && l.records[key].blocksOwn() {
				return nil, &BlockedError{Key: key, Resource: holder.Resource, Holding: l.records[key].clone()}
			}
			passing[key] = e.passing()
			continue
		}
		if refused == nil {
			refused = &listedError{Key: key, Resource: holder.Resource, Pod: x.pod, Namespace: x.facts.Namespace,
				Name: x.facts.Name, Containers: x.containers, Since: r.Since}
		}
		questions = append(questions, Question{
			PodUID: x.pod, Namespace: x.facts.Namespace, Pod: x.facts.Name, Containers: x.containers, All: x.all, Resource: x.resource, Key: key,
		})
	}
	if refused != nil {
		return questions, refused
	}
	l.grant(holder, grant, keys, passing)
	return nil, nil
}

// grant records the devices for a pod that is not known yet. Passing are the holders whose devices it reuses.
func (l *Ledger) grant(holder gpu.Holder, grant string, keys []gpu.DeviceKey, passing map[gpu.DeviceKey][]string) {
	now := l.deps.Clock.Now()
	for _, key := range keys {
		h := Holding{Holding: gpu.Holding{Key: key, Holder: holder, Since: now}, Pending: true}
		if old := l.records[key]; old != nil && passing[key] != nil {
			h.Grants = slices.Clone(old.Grants)
		}
		if grant != "" {
			h.Grants = append(h.Grants, grant)
		}
		l.remove(key)
		l.put(h)
		l.records[key].passed, l.records[key].stamp, l.records[key].users = passing[key], l.stamp, nil
	}
	l.publishPods(holder.Resource, keys)
}

// blocker returns the holding that blocks key for holder, or nil. It removes orphans that have ended.
func (l *Ledger) blocker(j *join, holder gpu.Holder, key gpu.DeviceKey) *Holding {
	for {
		blocking := l.inTheWay(holder, gpu.Located{Key: key})
		if blocking == nil || blocking.Holder.Kind != gpu.HolderOrphan {
			return blocking
		}
		free := blocking.Key == key && !otherUse(blocking.Holder.Resource, holder.Resource)
		if !l.revisit(j, blocking.Key, free) {
			return blocking
		}
	}
}

// inTheWay finds the first holding that keeps holder from having a device, as far as is known.
func (l *Ledger) inTheWay(holder gpu.Holder, want gpu.Located) *Holding {
	for _, other := range onGPU(l.order, want.Key.GPU) {
		if h := &l.records[other].Holding; l.inWay(h, holder, want) {
			return h
		}
	}
	return nil
}

// Offered records that the kubelet considers these devices of a resource free, as it does in GetPreferredAllocation
// with those that are not must-include. Those that a container uses are then held by an orphan, unless the kubelet's
// checkpoint lists them; those whose container has ended are free. So the result of BlockedBy is correct at this moment,
// regardless of the age of the last Reconcile.
//
// It returns the devices that an Allocate would refuse because the checkpoint lists them for another pod, sorted by
// key; they should be preferred last. Devices without a holding cost nothing, unless the ledger is blind.
func (l *Ledger) Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey {
	held := l.noteOffered(resource, keys)
	if held == nil {
		return nil
	}
	j := newJoin(l, l.observe(held, nil)) // observe returns with the mutex held
	before := l.edits
	l.notice(j)
	var last []gpu.DeviceKey
	listed := collectEvidence(j.view.Assignments, held, l.deps.facts)
	for _, key := range held {
		if r := l.records[key]; r == nil || !r.ofKubelet(resource) {
			continue
		}
		e := evidence{readable: j.checkpoint, entries: listed[key], offered: true}
		if e.objection() != nil {
			last = append(last, key)
		} else {
			l.revisit(j, key, true)
		}
	}
	changed := l.edits != before
	if changed {
		l.publish()
	}
	l.mu.Unlock()
	if changed {
		l.subs.SetAfter(notifyAfter)
	}
	return last
}

// noteOffered returns those of the keys that the ledger has for the kubelet's pods; nil when nothing has to be read.
func (l *Ledger) noteOffered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var held []gpu.DeviceKey
	for _, key := range keys {
		if r := l.records[key]; r != nil && r.ofKubelet(resource) {
			r.offered = true
			held = append(held, key)
		}
	}
	if held == nil && l.blind() {
		held = []gpu.DeviceKey{}
	}
	return held
}

// ofKubelet reports whether the kubelet's state of a device of the resource applies to this holding. It does not if the
// device was allocated as another resource.
func (r *record) ofKubelet(resource string) bool {
	return r.Holder.OfPod() && !otherUse(r.Holder.Resource, resource)
}

// blind reports whether a device without a holding may be in use: while the checkpoint is not known and the last
// reading of the containers is too old. The caller holds the mutex.
func (l *Ledger) blind() bool {
	if l.certain || l.deps.Look == nil {
		return false
	}
	age := l.deps.Clock.Since(l.looked)
	return age < 0 || age > MaxLookAge
}

// notice adds the containers on devices without a holding when the ledger was blind.
func (l *Ledger) notice(j *join) {
	if !l.blind() {
		return
	}
	l.see(j)
	for _, key := range slices.SortedFunc(maps.Keys(j.live), gpu.CompareKeys) {
		if l.records[key] == nil {
			l.revisit(j, key, false)
		}
	}
}

// lifeless is a holding whose containers have all ended, and which the kubelet may still have.
func (h Holding) lifeless() Holding {
	h.Holder.Kind, h.Live, h.Uncounted = gpu.HolderPod, nil, false
	return h
}

// marked are the entries about a key, those marked that the kubelet has dropped.
func (v *NodeView) marked(key gpu.DeviceKey, entries []entry) []entry {
	for i, x := range entries {
		entries[i].dropped = v.hasDropped(x.pod, x.resource, key)
	}
	return entries
}

// facts calls Deps.Pod; without it, nothing is known.
func (d *Deps) facts(uid string) PodFacts {
	if d.Pod == nil {
		return PodFacts{}
	}
	return d.Pod(uid)
}

// on reports whether the container uses the device of h.
func (c *Container) on(h Holding) bool {
	if slices.Contains(c.Keys, h.Key) {
		return true
	}
	if c.PodUID != h.Holder.PodUID {
		return false
	}
	// An orphan consists of particular containers and ends with them; a container that starts again under the same name
	// has got other devices.
	if h.Holder.Kind == gpu.HolderOrphan || len(c.Keys) > 0 {
		return slices.Contains(h.Live, c.ID)
	}
	return c.Name == "" || slices.Contains(h.Containers, c.Name) || slices.Contains(h.Live, c.ID)
}
