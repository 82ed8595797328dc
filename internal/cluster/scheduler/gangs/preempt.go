package gangs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/budgets"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	core "github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// makeWay looks for pods that have to end for a gang that does not fit: those of lower priorities, which it ends, or those that end by
// themselves, if the gang is the first one in line. It reserves their places for the gang, and returns why it waits then; empty if
// nothing is reserved.
func (p *Plugin) makeWay(pod *v1.Pod, q *attempt) (string, error) {
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	s := q.search
	if s == nil {
		s, err = p.look(q, nodes, p)
	} else {
		err = p.verify(q, s, nodes)
	}
	switch {
	case errors.Is(err, core.ErrSteps):
		return p.lookBeside(pod, nodes), nil
	case err != nil || s == nil:
		return "", err
	case s.found == nil && !s.reserve:
		p.gangs.awaitTurn(q.key, p)
	}
	return p.gangs.take(pod, q, s.found, s.reserve, s.took), nil
}

// awaitTurn has a gang wait for its reservation that was refused beside the cycles: whether it may have one was asked before it was
// refused.
func (r *registry) awaitTurn(key gangplan.Key, c cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, now := r.gangs[key], r.clock.Now(); g != nil && r.mayReserve(g, now, c) {
		g.wakeAt(later(now, g.next))
	}
}

// search is what was found of what has to end for a gang.
type search struct {
	// found is nil for nothing.
	found *way
	// reserve is true where pods were considered, too, that end by themselves.
	reserve bool
	took    time.Duration
}

// look looks for what has to end for a gang by the state of some nodes; nil where it is not the time for that.
func (p *Plugin) look(q *attempt, nodes []fwk.NodeInfo, c cluster) (*search, error) {
	r := p.gangs
	r.mu.Lock()
	g, now := r.gangs[q.key], r.clock.Now()
	if g == nil || g.changes != q.changes {
		r.mu.Unlock()
		return nil, nil
	}

	// See what the gang may do now.
	preempt, reserve, priority := r.mayPreempt(g, now, c), r.mayReserve(g, now, c), g.priority()
	r.mu.Unlock()
	if !preempt && !reserve {
		return nil, nil
	}

	// Look for pods of lower priorities first, then for pods that end by themselves.
	var found *way
	var err error
	if preempt {
		if found, err = p.preemption(q, nodes, priority); err != nil {
			return nil, err
		}
	}
	if found == nil && reserve {
		if found, err = p.soonest(q, nodes); err != nil {
			return nil, err
		}
	}
	return &search{found, reserve, r.clock.Since(now)}, nil
}

// verify drops pods that were to end by an earlier state if they are not what has to end in the present one.
func (p *Plugin) verify(q *attempt, s *search, nodes []fwk.NodeInfo) error {
	if s.found == nil || !s.found.preempts {
		return nil
	}
	r := p.gangs
	r.mu.Lock()
	g := r.gangs[q.key]
	if g == nil {
		r.mu.Unlock()
		return nil
	}
	present := r.ask(g, g.priority(), p.model.Version(), nodes)
	r.mu.Unlock()
	stands, err := p.planner.Stands(p.questionOf(&present, present.view), s.found.Ending, func(pod *v1.Pod) bool { return p.has(pod.Spec.NodeName, pod.UID) })
	if err == nil && !stands {
		s.found, s.reserve = nil, false
	}
	return err
}

// lookBeside has pods sought beside the scheduling cycles that have to end for the gang of a member, and returns why it waits.
func (p *Plugin) lookBeside(pod *v1.Pod, nodes []fwk.NodeInfo) string {
	r := p.gangs
	r.mu.Lock()
	g := r.of(pod)
	if g == nil || g.job != nil {
		r.mu.Unlock()
		return ""
	}
	q := r.ask(g, corev1helpers.PodPriority(pod), p.model.Version(), nodes)
	r.mu.Unlock()
	return p.begin(g, &q, nodes)
}

// usable tells whether pods can be placed on a node at all.
func (p *Plugin) usable(name string) bool {
	node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
	return err == nil && isUsable(node)
}

func isUsable(node fwk.NodeInfo) bool {
	return node != nil && node.Node() != nil && !node.Node().Spec.Unschedulable
}

// has tells whether a pod is on a node.
func (p *Plugin) has(name string, pod types.UID) bool {
	node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
	return err == nil && hasPod(node, pod)
}

func hasPod(node fwk.NodeInfo, pod types.UID) bool {
	return node != nil && slices.ContainsFunc(node.GetPods(), func(info fwk.PodInfo) bool { return info.GetPod().UID == pod })
}

// way is what a gang waits for.
type way struct {
	*gangplanner.Ending
	preempts bool
}

// preemption looks for pods of lower priorities.
func (p *Plugin) preemption(q *attempt, nodes []fwk.NodeInfo, priority int32) (*way, error) {
	if !p.gangs.endable(nodes, q.version, priority) {
		return nil, nil
	}
	running, terminating := p.gangs.lower(nodes, q.key, priority)
	if len(running) == 0 {
		return nil, nil
	}
	list, err := p.handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	disruptions := budgets.New(list)
	for _, holders := range [][]gangplanner.Holder{terminating, running} {
		ending, err := p.planner.End(&q.Question, holders, disruptions)
		if err != nil {
			return nil, err
		}
		if ending != nil {
			return &way{ending, true}, nil
		}
	}
	return nil, nil
}

// soonest looks for pods that end by themselves.
func (p *Plugin) soonest(q *attempt, nodes []fwk.NodeInfo) (*way, error) {
	ending, err := p.planner.End(&q.Question, p.gangs.ending(nodes), budgets.New(nil))
	if err != nil || ending == nil {
		return nil, err
	}
	return &way{ending, false}, nil
}

// take reserves what was found for the gang of a pod, and returns why the gang waits then.
func (r *registry) take(pod *v1.Pod, q *attempt, found *way, tried bool, took time.Duration) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.line.searchAfter = now.Add(pauseAfter(took))
	g := r.of(pod)
	if g == nil || g.changes != q.changes || g.refusal == nil {
		return ""
	}
	if found == nil || len(found.Pods) == 0 {
		if tried {
			g.reserveAfter = now.Add(r.limits.Hopeless)
		}
		return ""
	}

	// Compare with the reservation that the gang has, and with the line.
	res := r.reservationOf(found, now)
	if old := g.reservation; old != nil && !res.preempts && !earlier(res.start, old.start) {
		old.confirmed = now
		return g.reason(g.refusal.reason)
	}
	if !res.preempts && (r.isBehind(g) || res.start.IsZero() && !r.takesTurn(g, res, now)) {
		return ""
	}

	// Reserve the places.
	r.grant(g, res, &found.Plan)
	if found.preempts {
		r.evict(g, found.Pods, now)
	}
	res.announcement = r.starts(res, found.Pods)
	return g.reason(g.refusal.reason)
}

// isBehind tells whether a gang before this one in line has got its reservation while one was sought for this one.
func (r *registry) isBehind(g *gang) bool {
	other := r.line.first
	return other != nil && other != g && !r.precedes(g, other)
}

// reservationOf returns the reservation for a way, without its places. It lasts until the pods should have ended, as far as that is known.
func (r *registry) reservationOf(found *way, now time.Time) *reservation {
	res := &reservation{preempts: found.preempts, confirmed: now, awaited: map[types.UID]string{}}
	for _, ended := range found.Pods {
		res.awaited[ended.UID] = ended.Spec.NodeName
	}
	if !found.preempts {
		res.start = r.lastEnd(found.Pods)
		res.until = r.server.own(res.start).Add(r.limits.Overdue)
	}
	return res
}

// earlier tells whether a start is before another one, where zero is a start that is not known.
func earlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// farthest is how far ahead a start can be: one that is farther is as good as none, and would keep places for too long.
const farthest = 7 * 24 * time.Hour

// lastEnd returns when the last pod ends at the latest, zero if that is not known.
func (r *registry) lastEnd(pods []*v1.Pod) (latest time.Time) {
	for _, pod := range pods {
		end, known := r.knownEnd(pod)
		if !known {
			return time.Time{}
		}
		latest = later(latest, end)
	}
	return latest
}

// knownEnd returns when a pod ends at the latest; false where that is not known, too far ahead, or should have been.
func (r *registry) knownEnd(pod *v1.Pod) (time.Time, bool) {
	now := r.server.now()
	end, _ := endOf(pod, now)
	return end, !end.IsZero() && !end.After(now.Add(farthest)) && now.Sub(end) <= r.limits.Overdue
}

// eviction is a pod that is to be ended for a gang.
type eviction struct {
	pod *v1.Pod
	key gangplan.Key
	// member is one of the gang.
	member *v1.Pod
}

// evict has the keeper end the pods for which the reservation of a gang waits.
func (r *registry) evict(g *gang, pods []*v1.Pod, now time.Time) {
	var longest time.Duration
	leader := r.build(g).Members[0]
	evicted := false
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			longest = max(longest, pod.DeletionTimestamp.Sub(r.server.now()))
		} else {
			longest = max(longest, grace(pod))
			r.errands.evictions[pod.UID] = &eviction{pod: pod, key: g.key, member: leader}
			evicted = true
		}
	}
	g.reservation.until = now.Add(longest + r.limits.Overdue)
	if evicted {
		g.preemptAfter = now.Add(longest + r.limits.Preempt<<min(g.preemptions, mostDoublings))
		g.preemptions++
	}
	r.wakeKeeper()
}

// toEvict returns the pods that are to be ended now, by name.
func (r *registry) toEvict() (list []*eviction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.errands.evictions {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *eviction) int { return byName(a.pod, b.pod) })
	return list
}

// byName orders pods by namespace and name.
func byName(a, b *v1.Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// evicted notes that a pod ends.
func (r *registry) evicted(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.errands.evictions, uid)
}

// evict ends the pods that are to be ended. What fails is attempted again at the next tick.
func (k *keeper) evict(ctx context.Context) {
	for _, e := range k.gangs.toEvict() {
		// A conflict says that the pod has gone, and that another one has its name.
		if err := k.end(ctx, e); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Error(err, "Cannot end a pod for a gang of a higher priority", "pod", klog.KObj(e.pod), "gang", e.key.String())
			continue
		}
		k.gangs.evicted(e.pod.UID)
	}
}

// end ends one pod as Kubernetes' own preemption does: one that is not bound yet goes back to the queue, and of others the condition
// DisruptionTarget says why they end.
func (k *keeper) end(ctx context.Context, e *eviction) error {
	said := fmt.Sprintf("Preempted by gang %s", e.key)

	// A pod that is not bound yet goes back to the queue.
	if waiting := k.handle.GetWaitingPod(e.pod.UID); waiting != nil && waiting.Preempt(Name, k.gangs.preemptedText()) {
		k.handle.EventRecorder().Eventf(e.pod, e.member, v1.EventTypeNormal, "Preempted", "Preempting", "%s before it was bound", said)
		return nil
	}
	if out, waits := k.gangs.preempted(e.pod); waits {
		undo(k.handle, out)
		k.handle.EventRecorder().Eventf(e.pod, e.member, v1.EventTypeNormal, "Preempted", "Preempting", "%s before it was bound", said)
		return nil
	}

	// Another one gets the condition, and is deleted.
	pods := k.handle.ClientSet().CoreV1().Pods(e.pod.Namespace)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": e.pod.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler, LastTransitionTime: metav1.NewTime(k.clock.Now()),
			Message: fmt.Sprintf("%s: preempting to accommodate the gang %s of a higher priority", e.member.Spec.SchedulerName, e.key),
		}}},
	})
	if err != nil {
		return err
	}
	if _, err := pods.Patch(ctx, e.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	if err := pods.Delete(ctx, e.pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.pod.UID))}); err != nil {
		return err
	}
	k.handle.EventRecorder().Eventf(e.pod, e.member, v1.EventTypeNormal, "Preempted", "Preempting", "%s on node %s", said, e.pod.Spec.NodeName)
	return nil
}
