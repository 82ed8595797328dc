package gangs

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// elect notes that this process runs scheduling cycles. Only the leader does (1.37.1, cmd/kube-scheduler/app/server.go:326). A standby
// makes the plugins (463) and follows pods (310), too, and its queue calls PreEnqueue
// (pkg/scheduler/backend/queue/scheduling_queue.go:731). Before the first cycle nothing is deleted. A gang that is
// bound in part then has its full time: the process that was binding it may have ended just before.
func (r *registry) elect() {
	if r.elected.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.elected.Swap(true) {
		return
	}
	now := r.clock.Now()
	for _, g := range r.gangs {
		g.restartPartial(now)
	}
}

// completeSince returns when a gang that can be placed had its least number of members first, as the creation of its members says; now
// where that is not before.
func (r *registry) completeSince(view *gangplan.Gang) time.Time {
	members := slices.Clone(view.Members)
	slices.SortFunc(members, func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	least := min(max(1, gangplan.Least(view)), len(members))
	now, created := r.clock.Now(), members[least-1].CreationTimestamp
	if at := r.server.own(created.Time); !created.IsZero() && at.Before(now) {
		return at
	}
	return now
}
