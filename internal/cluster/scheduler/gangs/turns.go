package gangs

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// turnAt returns the turn, now or next, in which a reservation can be held whose start is not known: while it is held, GPUs are idle, and
// nothing says for how long. The last turn began at a time, zero for none. Turns begin at least a period after one another, so that in any
// period they take no more than the length of one. The second half of a turn is too short to begin with.
func turnAt(last, now time.Time, length, period time.Duration) (begins, ends time.Time) {
	switch {
	case last.IsZero() || !now.Before(last.Add(period)):
		begins = now
	case now.Before(last.Add(length / 2)):
		begins = last
	default:
		begins = last.Add(period)
	}
	return begins, begins.Add(length)
}

// takesTurn gives a reservation whose start is not known the turn that there is now. Where there is none the gang tries again then, or
// earlier, since another reservation may do.
func (r *registry) takesTurn(g *gang, res *reservation, now time.Time) bool {
	begins, ends := turnAt(r.line.turn, now, r.limits.Unknown, r.limits.Period)
	if begins.After(now) {
		g.reserveAfter = begins
		if retry := now.Add(r.limits.Hopeless); retry.Before(begins) {
			g.reserveAfter = retry
		}
		g.wakeAt(g.reserveAfter)
		return false
	}
	r.line.turn, res.until = begins, ends
	return true
}

// place returns the place of a gang in the line for reservations: when it was complete, or when its last turn was over.
func (g *gang) place() time.Time { return later(g.since, g.served) }

// finalized tells whether a pod has ended but for its finalizers: the API server deletes one without them at once.
func finalized(pod *v1.Pod) bool {
	if pod.DeletionTimestamp == nil || len(pod.Finalizers) == 0 {
		return false
	}
	if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		return true // The kubelet has confirmed the end of the containers (k8s.io/apiserver 0.37.1, pkg/registry/rest/delete.go:143).
	}
	running := func(c v1.ContainerStatus) bool { return c.State.Terminated == nil }
	return len(pod.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.ContainerStatuses, running)
}

// seeEnd notes since when a pod waits for its finalizers only. The caller holds the lock.
func (r *registry) seeEnd(pod *v1.Pod) {
	if _, seen := r.finalizing[pod.UID]; !seen && finalized(pod) {
		r.finalizing[pod.UID] = r.clock.Now()
	}
}

// stuck tells whether a pod waits for its finalizers for so long that nothing waits for the pod: usually a controller removes them at once,
// and if it does not, nothing says when. The caller holds the lock.
func (r *registry) stuck(pod types.UID) bool {
	since, seen := r.finalizing[pod]
	return seen && r.clock.Since(since) > r.limits.Overdue
}
