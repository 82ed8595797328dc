package gangs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/gangview"
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
			k.once(ctx)
		case <-k.gangs.work:
		}
		k.inquire(ctx)
		k.evict(ctx)
	}
}

// once ends holds whose time is over, and releases the gangs whose time is over.
func (k *keeper) once(ctx context.Context) {
	k.readClock(ctx)
	released, lost := k.gangs.overdue()
	for _, said := range k.gangs.unsaid() {
		kind := v1.EventTypeWarning
		if said.reason == waiting {
			kind = v1.EventTypeNormal
		}
		k.handle.EventRecorder().Eventf(said.pods[0], nil, kind, said.reason, "Scheduling", "%s", said.text)
	}
	for _, out := range released {
		undo(k.handle, out)
	}
	var list []fwk.WaitingPod
	k.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) { list = append(list, w) })
	for _, w := range list {
		if err := k.gangs.stray(w.GetPod()); err != nil {
			w.Reject(Name, err.Error())
		}
	}
	for _, l := range lost {
		for _, pod := range l.pods {
			k.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeWarning, "GangReleased", "Scheduling", "%s", l.text)
			err := k.handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot delete a member of a gang that is bound in part", "pod", klog.KObj(pod))
			}
		}
	}
}

// Reasons of events.
const (
	waiting = "GangWaiting"
	refusal = "GangRefused"
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
	slices.SortFunc(list, func(a, b partly) int { return cmp.Compare(a.text, b.text) })
	return list
}

// unsaidOf returns what an event has to say of one gang, if anything. The caller holds the lock.
func (r *registry) unsaidOf(g *gang, now time.Time) (said partly, found bool) {
	long := !g.said && now.Sub(g.seen) >= r.limits.Say
	if g.ready {
		g.told = ""
	}
	if g.ready || g.view == nil && !long {
		return said, false
	}
	view := r.build(g)
	wrong := view.Problem
	if wrong == "" && gangplan.Least(view) > gangview.MaxMembers {
		wrong = view.Waiting // No number of further pods helps.
	}
	switch {
	case wrong != "" && wrong != g.told:
		g.told = wrong
		return partly{reason: refusal, text: wrong}, true
	case wrong == "" && view.Waiting != "" && long:
		g.said = true
		return partly{reason: waiting, text: view.Waiting}, true
	}
	return said, false
}

// partly are members of a gang, and what an event says of it and why.
type partly struct {
	pods   []*v1.Pod
	reason string
	text   string
}

// overdue returns the members that are to be tried again, since holds or a plan have ended, and the gangs that have been bound in part for
// too long.
func (r *registry) overdue() (again []released, lost []partly) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.holds.expire(now)
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
	if jobs = append(jobs, r.nextJob()...); len(jobs) > 0 {
		again = append(again, released{pods: jobs})
	}
	if len(r.blocked) > 0 && r.holds.freed != r.unblocked {
		again = append(again, released{pods: slices.Collect(maps.Values(r.blocked))})
		clear(r.blocked)
	}
	r.unblocked = r.holds.freed
	slices.SortFunc(lost, func(a, b partly) int { return cmp.Compare(a.text, b.text) })
	return again, lost
}

// late gives up a plan that makes no progress, and returns the members of a gang that are to be tried again. The caller holds the lock.
func (r *registry) late(g *gang, now time.Time) (again []released) {
	if g.plan != nil && !g.plan.permitted && len(g.plan.preparing) == 0 && now.Sub(g.plan.progress) > r.limits.Reserve {
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
	g.refused = nil // It is to be planned, not to be refused as before.
	pods := r.leader(g)
	if len(pods) == 0 && g.plan == nil {
		pods = r.pending(g) // None came when it was its turn.
	}
	if g.ready && len(pods) > 0 {
		again = append(again, released{pods: pods})
	}
	return again
}

// woken tells whether a member is to be brought back to plan the gang, once. The caller holds the lock.
func (g *gang) woken(now time.Time, freed uint64) bool {
	woken := false
	if !g.wake.IsZero() && !now.Before(g.wake) {
		g.wake, woken = time.Time{}, true
	}
	if g.afterHold && g.freed != freed {
		g.afterHold, woken = false, true
	}
	if g.afterPlan && g.plan == nil {
		g.afterPlan, woken = false, true
	}
	return woken
}

// partly returns the members of a gang that has been bound in part for too long. The time of a gang begins when a binding fails: it takes
// as long as its volumes and devices need. The caller holds the lock.
func (r *registry) partly(g *gang, now time.Time) (l partly, over bool) {
	if g.partial.IsZero() || g.whole || !r.elected.Load() {
		return l, false
	}
	if g.binding() {
		g.partial = now
	}
	if now.Sub(g.partial) < r.limits.Release {
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
	l.text = fmt.Sprintf("gang %s has %d of at least %d members on nodes, and the others did not get theirs within %v: its members are deleted, so that they hold nothing",
		g.name, len(l.pods), gangplan.Least(view), r.limits.Release)
	g.partial = now // Again, if a deletion fails.
	return l, true
}

// binding tells whether all members of the plan are being bound, and no binding has failed. PreBind can take 10 minutes: that is how long
// VolumeBinding waits for a volume (1.37.1, pkg/scheduler/apis/config/v1/defaults.go:196), and DynamicResources for the conditions of a
// device (pkg/scheduler/apis/config/types_pluginargs.go:289). The caller holds the lock.
func (g *gang) binding() bool { return g.plan != nil && g.plan.permitted && len(g.failing) == 0 }

// wasWhole tells whether a gang that is bound in part was bound as a whole earlier, and has lost members: it goes on. That is so, too,
// where its members were bound long before this scheduler started, and where that is not known.
func (r *registry) wasWhole(view *gangview.Gang) bool {
	whole, bound := gangplan.WasWhole(view)
	started, known := r.server.at(r.started)
	return whole || !known || bound.Time.Before(started.Add(-r.limits.Outage))
}
