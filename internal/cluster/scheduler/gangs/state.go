package gangs

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// registry has the gangs of a cluster. One lock guards them all: its methods that take a gang or a job, and the methods of a gang, are
// called with the lock, and so are those whose comment says so. The others take it.
type registry struct {
	clock  clock.PassiveClock
	levels gangplan.Levels
	limits Limits
	// requests returns what a pod requests of GPUs. Any goroutine may call it.
	requests func(*v1.Pod) []fleet.Shape
	// started is when the scheduler started.
	started time.Time
	// server tells the time of the API server's clock.
	server serverClock

	mu     sync.Mutex // guards the fields below and all gangs
	gangs  map[gangplan.Key]*gang
	ofPod  map[types.UID]gangplan.Key
	groups map[gangplan.Key]*gangplan.Group
	holds  holds
	// schedulers are the names of the profiles: gangs of other schedulers are none of its business.
	schedulers map[string]bool
	// refusals counts the refusals of members that were reserved.
	refusals uint64
	// blocked are pods of no gang that were refused because of a hold.
	blocked blocked
	// line is what the reservations of all gangs share.
	line line
	// job is the gang that is planned beside the scheduling cycles, nil for none.
	job *job
	// errands are what the keeper does.
	errands errands
	// finalizing are pods that have ended but for their finalizers, and since when.
	finalizing map[types.UID]time.Time

	// elected is true once this process has run a scheduling cycle, see elect.
	elected atomic.Bool
}

// blocked are pods of no gang that were refused because of a hold.
type blocked struct {
	pods map[types.UID]*v1.Pod
	// freed is how many holds had ended when they were tried again last.
	freed uint64
}

// mostBlocked bounds the pods that come back when a hold ends. The others come back by the events of the scheduler.
const mostBlocked = 10_000

// note keeps a pod that was refused.
func (b *blocked) note(pod *v1.Pod) {
	if len(b.pods) < mostBlocked {
		b.pods[pod.UID] = pod
	}
}

// take returns the pods, if holds have ended since they were tried last, and forgets them.
func (b *blocked) take(freed uint64) (list []*v1.Pod) {
	if b.freed != freed {
		list = slices.Collect(maps.Values(b.pods))
		clear(b.pods)
	}
	b.freed = freed
	return list
}

// gang is what is known of one: its pods, and one struct for each part of its state, which says who writes it. The lock of the registry
// guards all of it.
type gang struct {
	key gangplan.Key
	// name is that of the key, which is costly to make.
	name string
	// pods are its members, and the pods that have succeeded. ended is when the last one ended that had not, zero if none has.
	pods  map[types.UID]*v1.Pod
	ended time.Time
	// bound are the nodes of pods that this scheduler has bound, until the API server says so.
	bound map[types.UID]string
	// failing is since when the binding of a member fails.
	failing map[types.UID]time.Time
	// absent are members that did not come to be planned when it was their turn: another plugin keeps them from it.
	absent map[types.UID]bool
	// masks are nodes that other plugins refuse, by the signature of members.
	masks map[string]mask

	composition
	position
	progress
	occupancy
	wakeup
	backoff
	shortage
	announced
}

// composition is what the pods and the PodGroup of a gang say.
type composition struct {
	// view is made when it is asked for; nil after a change. changes counts the changes that matter to a plan.
	view    *gangplan.Gang
	changes uint64
	// ready is true where the members could be placed at the last look, least is how many pods that takes, 0 where it is not known.
	ready bool
	least int
	// minimum is what a member says of the least number, and mixed is true where they differ.
	minimum string
	mixed   bool
}

// discard discards the view: a pod or the PodGroup has changed so that the gang may be another one.
func (g *gang) discard() {
	g.view, g.dirty = nil, true
	g.changes++
}

// mask are nodes that other plugins let members of one signature use.
type mask struct {
	allowed map[string]bool
	until   time.Time
}

func newRegistry(levels gangplan.Levels, c clock.PassiveClock, limits Limits, requests func(*v1.Pod) []fleet.Shape) *registry {
	return &registry{
		clock:      c,
		levels:     levels,
		limits:     limits.withDefaults(),
		requests:   requests,
		started:    c.Now(),
		server:     serverClock{clock: c},
		gangs:      map[gangplan.Key]*gang{},
		ofPod:      map[types.UID]gangplan.Key{},
		groups:     map[gangplan.Key]*gangplan.Group{},
		holds:      newHolds(),
		schedulers: map[string]bool{},
		blocked:    blocked{pods: map[types.UID]*v1.Pod{}},
		errands:    errands{wake: make(chan struct{}, 1), evictions: map[types.UID]*eviction{}, inquiries: map[types.UID]*v1.Pod{}},
		finalizing: map[types.UID]time.Time{},
	}
}

// serve notes a profile of the scheduler.
func (r *registry) serve(profile string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedulers[profile] = true
}

// ours tells whether this scheduler schedules a pod. The caller holds the lock.
func (r *registry) ours(pod *v1.Pod) bool { return r.schedulers[pod.Spec.SchedulerName] }

// of returns the gang of a pod, or nil. The caller holds the lock.
func (r *registry) of(pod *v1.Pod) *gang {
	key, ok := gangplan.KeyOf(pod)
	if !ok {
		return nil
	}
	return r.gangs[key]
}

// build returns the view of a gang.
func (r *registry) build(g *gang) *gangplan.Gang {
	if g.view == nil {
		pods := make([]*v1.Pod, 0, len(g.pods))
		for _, pod := range g.pods {
			pods = append(pods, pod)
		}
		view := gangplan.Build(g.key, pods, r.groups[g.key], r.levels)
		g.view, g.ready, g.least = &view, ready(&view), gangplan.Least(&view)
		g.turns = turns(view.Members)
		if g.since.IsZero() && g.ready {
			g.since = r.completeSince(&view)
		}
	}
	return g.view
}

// ready tells whether the members of a gang can be placed.
func ready(view *gangplan.Gang) bool {
	return view.Problem == "" && view.Waiting == "" && len(view.Members) > 0
}

// set notes a pod as it is now. The result has the members that can be placed now and could not before, and what has to be released.
func (r *registry) set(pod *v1.Pod) (out released) {
	key, ok := gangplan.KeyOf(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seeEnd(pod)

	// Leave the gang that it was in, and be done if it is in none now.
	if old, known := r.ofPod[pod.UID]; known && (!ok || old != key) {
		out = r.drop(pod.UID, old)
	}
	if !ok {
		if pod.Spec.NodeName != "" {
			delete(r.blocked.pods, pod.UID)
		}
		return out
	}

	// Find its gang.
	delete(r.errands.inquiries, pod.UID)
	g := r.gangs[key]
	if g == nil {
		g = &gang{
			key:       key,
			name:      key.String(),
			pods:      map[types.UID]*v1.Pod{},
			bound:     map[types.UID]string{},
			failing:   map[types.UID]time.Time{},
			absent:    map[types.UID]bool{},
			masks:     map[string]mask{},
			announced: announced{seen: r.clock.Now()},
		}
		r.gangs[key] = g
	}

	// Note what has changed.
	old := g.pods[pod.UID]
	if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodFailed {
		r.beforeLoss(g)
	}
	g.gained = g.gained || pod.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == "")
	g.pods[pod.UID], r.ofPod[pod.UID] = pod, key
	r.change(g, old, pod)
	if pod.Spec.NodeName != "" {
		delete(g.bound, pod.UID)
		delete(g.failing, pod.UID)
		out.add(r.placed(g, pod.UID))
	}

	// Bring back who can be placed now.
	if old == nil && g.ready {
		out.pods = append(out.pods, pod) // It may have come to the queue before it was known here.
	}
	out.pods = append(out.pods, r.awaken(g)...)
	return out
}

// change notes that a pod is another one than before, or new.
func (r *registry) change(g *gang, old, pod *v1.Pod) {
	g.dirty = true
	same := old != nil && sameContent(old, pod)
	if !same || old.Spec.NodeName != pod.Spec.NodeName {
		g.changes++
		r.forgetRefusal(g)
		delete(g.absent, pod.UID)
	}
	if old != nil && !same {
		g.wakeAt(r.clock.Now()) // What it says of the gang may be another thing now.
	}
	if same && r.swap(g, old, pod) {
		return
	}
	g.view = nil
	if text := minimumOf(pod); len(g.pods) == 1 {
		g.minimum, g.mixed = text, false
	} else if text != g.minimum {
		g.mixed = true
	}
	if g.mixed {
		g.least = 0 // What the members say may be another number.
	}
}

// minimumOf returns what a pod says of the least number of its gang.
func minimumOf(pod *v1.Pod) string {
	if text := pod.Labels[gangplan.MinMember]; text != "" {
		return text
	}
	return pod.Annotations[gangplan.MinMember]
}

// swap puts the new state of a member in the place of an old one whose content is the same. The view is copied, since a plan may be made of
// it.
func (r *registry) swap(g *gang, old, pod *v1.Pod) bool {
	if g.view == nil {
		return false
	}
	if group := r.groups[g.key]; group != nil && old.Spec.NodeName != pod.Spec.NodeName {
		return false // It may be one of an old PodGroup.
	}
	i := slices.Index(g.view.Members, old)
	if i < 0 {
		return true
	}
	view := *g.view
	view.Members = slices.Clone(view.Members)
	view.Members[i] = pod
	g.view = &view
	return true
}

// awaken returns the members of a gang that can be placed now and could not before.
func (r *registry) awaken(g *gang) []*v1.Pod {
	if g.ready || len(g.pods) < g.least {
		return nil
	}
	if r.build(g); !g.ready {
		return nil
	}
	g.brought = r.clock.Now()
	return r.pending(g)
}

// setGroup notes a PodGroup, or that there is none. It returns the members that can be placed now and could not before.
func (r *registry) setGroup(key gangplan.Key, group *gangplan.Group) []*v1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	if group == nil {
		delete(r.groups, key)
	} else {
		r.groups[key] = group
	}
	g := r.gangs[key]
	if g == nil {
		return nil
	}
	g.discard()
	r.forgetRefusal(g)
	g.ready, g.least = false, 0
	return r.awaken(g)
}

// sameContent tells whether two states of a pod are the same for its gang but for its node.
func sameContent(a, b *v1.Pod) bool {
	return a.Status.Phase == b.Status.Phase && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		len(a.Spec.SchedulingGates) == len(b.Spec.SchedulingGates) && sameMap(a.Labels, b.Labels) && sameMap(a.Annotations, b.Annotations) &&
		slices.EqualFunc(a.OwnerReferences, b.OwnerReferences, func(x, y metav1.OwnerReference) bool {
			return x.UID == y.UID && (x.Controller != nil && *x.Controller) == (y.Controller != nil && *y.Controller)
		})
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// pending are the members that have no node, and none that is being bound.
func (r *registry) pending(g *gang) (list []*v1.Pod) {
	for _, pod := range r.build(g).Members {
		if g.waits(pod) {
			list = append(list, pod)
		}
	}
	return list
}

// waits tells whether a member can be given a node. One with scheduling gates cannot.
func (g *gang) waits(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && g.bound[pod.UID] == "" && len(pod.Spec.SchedulingGates) == 0 &&
		(g.stage != stageBinding || g.plan.nodes[pod.UID] == "")
}

// leader returns the member that plans the gang, the first that waits for a node; none while there is a plan.
func (r *registry) leader(g *gang) []*v1.Pod {
	if g.plan != nil {
		return nil
	}
	for _, pod := range r.build(g).Members {
		if g.waits(pod) && !g.absent[pod.UID] {
			return []*v1.Pod{pod}
		}
	}
	return nil
}

// remove forgets a pod, which is as it was last. The result is what has to be released with it.
func (r *registry) remove(pod *v1.Pod) released {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.blocked.pods, pod.UID)
	delete(r.finalizing, pod.UID)
	key, known := r.ofPod[pod.UID]
	if !known {
		return released{}
	}
	g := r.gangs[key]
	r.beforeLoss(g)
	g.pods[pod.UID] = pod
	if pod.Status.Phase == v1.PodSucceeded {
		// It counts as done: the scheduler sees pods that have ended no longer.
		delete(g.bound, pod.UID)
		delete(g.failing, pod.UID)
		r.holds.remove(pod.UID)
		g.discard()
		if g.living() == 0 {
			g.ended = r.clock.Now()
		}
		return released{}
	}
	out := r.drop(pod.UID, key)
	if r.gangs[key] == g {
		r.keepPlace(g, pod)
	}
	return out
}

// drop forgets a pod of a gang. The caller holds the lock.
func (r *registry) drop(uid types.UID, key gangplan.Key) released {
	g := r.gangs[key]
	if pod := g.pods[uid]; pod.Status.Phase == v1.PodSucceeded {
		g.least = 0 // It may have counted as done.
	}
	delete(r.ofPod, uid)
	delete(g.pods, uid)
	delete(g.bound, uid)
	delete(g.failing, uid)
	delete(g.absent, uid)
	r.holds.remove(uid)
	g.discard()
	r.forgetRefusal(g)
	g.ready = false
	g.wakeAt(r.clock.Now()) // Another member may take its place, and the event of its end may have come before.
	var out released
	switch {
	case g.plan == nil || g.plan.nodes[uid] == "":
	case g.stage == stageBinding:
		out.pods = r.finish(g, uid)
	default:
		out = r.release(g, "a member was deleted")
	}
	if g.living() == 0 {
		r.abandon(g)
		r.revoke(g)
		r.holds.dropLost(key)
		g.ended = r.clock.Now()
		if len(g.pods) == 0 {
			delete(r.gangs, key)
		}
	}
	return out
}
