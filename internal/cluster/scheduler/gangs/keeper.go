package gangs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// keeper releases gangs that are bound in part and cannot be completed. It is woken by a clock, deletes the members of such gangs, reads
// members that are gone, and waits for nothing but these calls.
type keeper struct {
	gangs  *registry
	handle fwk.Handle
	clock  clock.WithTicker
	// clockAt is when the API server's clock is read again, and clockFailed true when the last reading has failed.
	clockAt     time.Time
	clockFailed bool
}

func (k *keeper) run(ctx context.Context) {
	ticker := k.clock.NewTicker(k.gangs.limits.Look)
	defer ticker.Stop()
	k.readClock(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			k.tick(ctx)
		case <-k.gangs.errands.wake:
		}
		k.inquire(ctx)
		k.evict(ctx)
	}
}

// tick ends holds whose time is over, and releases the gangs whose time is over.
func (k *keeper) tick(ctx context.Context) {
	k.readClock(ctx)
	released, lost := k.gangs.overdue()
	for _, said := range k.gangs.unsaid() {
		kind := v1.EventTypeWarning
		if said.reason == reasonWaiting {
			kind = v1.EventTypeNormal
		}
		k.handle.EventRecorder().Eventf(said.pods[0], nil, kind, said.reason, "Scheduling", "%s", said.message)
	}
	for _, out := range released {
		undo(k.handle, out)
	}
	var list []fwk.WaitingPod
	k.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) { list = append(list, w) })
	for _, w := range list {
		if err := k.gangs.withoutPlan(w.GetPod()); err != nil {
			w.Reject(Name, err.Error())
		}
	}
	for _, l := range lost {
		for _, pod := range l.pods {
			k.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeWarning, "GangReleased", "Scheduling", "%s", l.message)
			this := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
			if err := k.handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, this); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot delete a member of a gang that is bound in part", "pod", klog.KObj(pod))
			}
		}
	}
}

// errands are what the keeper does when it is woken.
type errands struct {
	wake chan struct{}
	// evictions are the pods that it ends.
	evictions map[types.UID]*eviction
	// inquiries are members that are gone, of which it reads whether they have succeeded.
	inquiries map[types.UID]*v1.Pod
}

// announced is what events have said of a gang.
type announced struct {
	// seen is when the gang was seen first.
	seen time.Time
	// problem is that of the last event, waiting is true when an event has said what the gang waits for.
	problem string
	waiting bool
}

// Reasons of events.
const (
	reasonWaiting = "GangWaiting"
	reasonRefused = "GangRefused"
)

// unsaid returns what events have to say: what is wrong with a gang, once, and what a gang waits for that waits for long, once. Pods have
// no condition that says so before they come to the queue. The pod is the first member, if it is one of this scheduler. Each replica says
// it: a leader whose only pods are of gangs without their members runs no scheduling cycle.
func (r *registry) unsaid() (list []partly) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for _, g := range r.gangs {
		said, found := r.unsaidOf(g, now)
		if !found {
			continue
		}
		for _, pod := range g.pods {
			if r.ours(pod) && (said.pods == nil || pod.Name < said.pods[0].Name) {
				said.pods = []*v1.Pod{pod}
			}
		}
		if said.pods != nil {
			list = append(list, said)
		}
	}
	slices.SortFunc(list, func(a, b partly) int { return cmp.Compare(a.message, b.message) })
	return list
}

// unsaidOf returns what an event has to say of one gang, if anything.
func (r *registry) unsaidOf(g *gang, now time.Time) (said partly, found bool) {
	long := !g.waiting && now.Sub(g.seen) >= r.limits.Say
	if g.ready {
		g.problem = ""
	}
	if g.ready || g.view == nil && !long {
		return said, false
	}
	view := r.build(g)
	wrong := view.Problem
	if wrong == "" && gangplan.Least(view) > gangplan.MaxMembers {
		wrong = view.Waiting // No number of further pods helps.
	}
	switch {
	case wrong != "" && wrong != g.problem:
		g.problem = wrong
		return partly{reason: reasonRefused, message: wrong}, true
	case wrong == "" && view.Waiting != "" && long:
		g.waiting = true
		return partly{reason: reasonWaiting, message: view.Waiting}, true
	}
	return said, false
}

// partly are members of a gang, and what an event says of it and why.
type partly struct {
	pods    []*v1.Pod
	reason  string
	message string
}

// overdue returns the members that are to be tried again, since holds or a plan have ended, and the gangs that have been bound in part for
// too long.
func (r *registry) overdue() (again []released, lost []partly) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.holds.expire(now)

	// Look at each gang.
	var jobs []*v1.Pod
	for _, g := range r.gangs {
		if r.forget(g) {
			continue
		}
		if g.dirty {
			r.note(g)
		}
		r.review(g, now)
		again = append(again, r.late(g, now)...)
		jobs = append(jobs, r.lateJob(g, now)...)
		if l, over := r.partly(g, now); over {
			lost = append(lost, l)
		}
	}

	// Bring back who can be planned beside the cycles, and pods that were refused for holds that have ended.
	if jobs = append(jobs, r.nextJob()...); len(jobs) > 0 {
		again = append(again, released{pods: jobs})
	}
	if pods := r.blocked.take(r.holds.freed); len(pods) > 0 {
		again = append(again, released{pods: pods})
	}
	slices.SortFunc(lost, func(a, b partly) int { return cmp.Compare(a.message, b.message) })
	return again, lost
}

// late gives up a plan that makes no progress, and returns the members of a gang that are to be tried again.
func (r *registry) late(g *gang, now time.Time) (again []released) {
	if g.stage == stagePlacing && len(g.plan.preparing) == 0 && now.Sub(g.plan.progress) > r.limits.Reserve {
		for uid := range g.plan.nodes {
			if !g.plan.reserved[uid] {
				g.absent[uid] = true
			}
		}
		again = append(again, r.release(g, "not all members were reserved in time"))
	}
	if !g.woken(now, r.holds.freed) {
		return again
	}
	r.forgetRefusal(g)
	pods := r.leader(g)
	if len(pods) == 0 && g.plan == nil {
		pods = r.pending(g) // None came when it was its turn.
	}
	if g.ready && len(pods) > 0 {
		again = append(again, released{pods: pods})
	}
	return again
}

// partly returns the members of a gang that has been bound in part for too long. The time of a gang begins when a binding fails: it takes
// as long as its volumes and devices need.
func (r *registry) partly(g *gang, now time.Time) (l partly, over bool) {
	if g.presence != presencePartial || !r.elected.Load() {
		return l, false
	}
	if g.binding() {
		g.restartPartial(now)
	}
	if now.Sub(g.partialSince) < r.limits.Release {
		return l, false
	}
	view := r.build(g)
	if len(view.Members) == 0 || !r.ours(view.Members[0]) || !g.followed && r.wasWhole(view) {
		return l, false
	}
	for _, pod := range view.Members {
		if pod.Spec.NodeName != "" {
			l.pods = append(l.pods, pod)
		}
	}
	l.message = fmt.Sprintf("gang %s has %d of at least %d members on nodes, and the others did not get theirs within %v: its members are deleted, so that they hold nothing",
		g.name, len(l.pods), gangplan.Least(view), r.limits.Release)
	g.restartPartial(now) // Again, if a deletion fails.
	return l, true
}

// binding tells whether all members of the plan are being bound, and no binding has failed. PreBind can take 10 minutes: that is how long
// VolumeBinding waits for a volume (1.37.1, pkg/scheduler/apis/config/v1/defaults.go:196), and DynamicResources for the conditions of a
// device (pkg/scheduler/apis/config/types_pluginargs.go:289).
func (g *gang) binding() bool { return g.stage == stageBinding && len(g.failing) == 0 }

// wasWhole tells whether a gang that is bound in part was bound as a whole earlier, and has lost members: it goes on. That is so, too,
// where its members were bound long before this scheduler started, and where that is not known.
func (r *registry) wasWhole(view *gangplan.Gang) bool {
	whole, bound := gangplan.WasWhole(view)
	started, known := r.server.serverTimeOf(r.started)
	return whole || !known || bound.Time.Before(started.Add(-r.limits.Outage))
}
