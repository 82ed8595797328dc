package kubeletsync

import (
	"maps"
	"time"

	"github.com/berth-gpu/berth/internal/node/ledger"
)

const (
	// startsWithin is how long the kubelet may take from the allocation of a pod's devices until the pod has a cgroup.
	startsWithin = 30 * time.Second
	// freshFor is how long a reading of the pods' cgroups proves that a pod was never started.
	freshFor = time.Second
)

// byCgroup returns the state of the pod according to its cgroup.
func (n *Reader) byCgroup(uid string, otherwise ledger.PodState) ledger.PodState {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, listed := n.listed[uid]
	switch {
	case n.present[uid]:
		return ledger.PodLiving
	case n.seen[uid], listed && n.deps.Clock.Since(since) > startsWithin:
		return ledger.PodEnded
	}
	return otherwise
}

// unstarted reports whether the pod was never seen with a cgroup. On a node that shows no pod's cgroup, as with
// --cgroups-per-qos=false, it returns false for every pod.
func (n *Reader) unstarted(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	looked := n.looked
	if alone := n.alone[uid]; alone.After(looked) {
		looked = alone
	}
	return len(n.present) > 0 && n.deps.Clock.Since(looked) <= freshFor && !n.present[uid] && !n.seen[uid]
}

// lookAtCgroups reads which pods have a cgroup.
func (n *Reader) lookAtCgroups() error {
	before := n.deps.Clock.Now()
	uids, err := n.deps.Containers.PodUIDs()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looked, n.present = before, map[string]bool{}
	maps.DeleteFunc(n.alone, func(_ string, at time.Time) bool { return !at.After(before) })
	for _, uid := range uids {
		n.present[uid], n.seen[uid] = true, true
	}
	return nil
}

// NoteListed records since when pods are listed. It drops the state of pods that are no longer listed.
func (n *Reader) NoteListed(listed []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.listed
	n.listed = map[string]time.Time{}
	for _, uid := range listed {
		n.listed[uid] = n.deps.Clock.Now()
		if since, known := before[uid]; known {
			n.listed[uid] = since
		}
	}
	for uid := range n.seen {
		if _, known := n.listed[uid]; !known && !n.present[uid] {
			delete(n.seen, uid)
		}
	}
}
