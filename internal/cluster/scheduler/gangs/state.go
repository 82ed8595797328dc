package gangs

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// registry has the gangs of a cluster.
type registry struct {
	clock  clock.PassiveClock
	levels gangview.Levels
	// requests returns what a pod requests of GPUs. Any goroutine may call it.
	requests func(*v1.Pod) []fleet.Shape

	mu     sync.Mutex // guards the fields below and all gangs
	gangs  map[gangview.Key]*gang
	ofPod  map[types.UID]gangview.Key
	groups map[gangview.Key]*gangview.Group
	holds  holds
}

// gang is what is known of one.
type gang struct {
	key  gangview.Key
	pods map[types.UID]*v1.Pod
	// bound are the nodes of pods that this scheduler has bound, until the API server says so.
	bound map[types.UID]string
	// view is made of the pods and the PodGroup when it is asked for; nil after a change.
	view *gangview.Gang
	// ready is true where the members could be placed at the last look, least is how many pods that takes, and dirty is true from a change
	// until note.
	ready, dirty bool
	least        int
	// since is when the least number of members existed first: the place of the gang in the queue.
	since time.Time
	// whole is true from when the least number of members had a node.
	whole bool
	// partial is since when some members have a node, but fewer than the least number; zero when that is not so.
	partial time.Time
	plan    *plan
	// refused is the last refusal, until anything changes.
	refused *refused
	// masks are nodes that other plugins refuse, by the signature of members.
	masks map[string]mask
	// told is the problem of the last event.
	told string
}

// refused is why a gang did not fit, when, and for which state.
type refused struct {
	version uint64
	at      time.Time
	text    string
}

// mask are nodes that other plugins let members of one signature use.
type mask struct {
	allowed map[string]bool
	until   time.Time
}

// plan is where the members that have no node yet go.
type plan struct {
	nodes    map[types.UID]string
	reserved map[types.UID]bool
	made     time.Time
	// permitted is true once all were reserved: they are being bound.
	permitted bool
}

func newRegistry(levels gangview.Levels, c clock.PassiveClock, requests func(*v1.Pod) []fleet.Shape) *registry {
	return &registry{
		clock: c, levels: levels, requests: requests, gangs: map[gangview.Key]*gang{}, ofPod: map[types.UID]gangview.Key{}, groups: map[gangview.Key]*gangview.Group{},
		holds: newHolds(),
	}
}

// of returns the gang of a pod, or nil. The caller holds the lock.
func (r *registry) of(pod *v1.Pod) *gang {
	key, ok := gangview.KeyOf(pod)
	if !ok {
		return nil
	}
	return r.gangs[key]
}

// build returns the view of a gang. The caller holds the lock.
func (r *registry) build(g *gang) *gangview.Gang {
	if g.view == nil {
		pods := make([]*v1.Pod, 0, len(g.pods))
		for _, pod := range g.pods {
			pods = append(pods, pod)
		}
		made := gangview.Build(g.key, pods, r.groups[g.key], r.levels)
		g.view, g.ready, g.least = &made, ready(&made), gangplan.Least(&made)
		if g.since.IsZero() && g.ready {
			g.since = r.clock.Now()
		}
	}
	return g.view
}

// ready tells whether the members of a gang can be placed.
func ready(view *gangview.Gang) bool {
	return view.Problem == "" && view.Waiting == "" && len(view.Members) > 0
}

// set notes a pod as it is now. The result has the members that can be placed now and could not before, and what has to be released.
func (r *registry) set(pod *v1.Pod) (out released) {
	key, ok := gangview.KeyOf(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, known := r.ofPod[pod.UID]; known && (!ok || old != key) {
		out = r.drop(pod.UID, old)
	}
	if !ok {
		return out
	}
	g := r.gangs[key]
	if g == nil {
		g = &gang{key: key, pods: map[types.UID]*v1.Pod{}, bound: map[types.UID]string{}, masks: map[string]mask{}}
		r.gangs[key] = g
	}
	if pod.Spec.NodeName != "" {
		delete(g.bound, pod.UID)
	}
	old := g.pods[pod.UID]
	g.pods[pod.UID], r.ofPod[pod.UID] = pod, key
	g.view, g.dirty = nil, true
	if old == nil || !sameMember(old, pod) {
		g.refused = nil
	}
	out.pods = append(out.pods, r.awaken(g)...)
	return out
}

// awaken returns the members of a gang that can be placed now and could not before. The caller holds the lock.
func (r *registry) awaken(g *gang) []*v1.Pod {
	if g.ready || len(g.pods) < g.least {
		return nil
	}
	if r.build(g); !g.ready {
		return nil
	}
	return r.pending(g)
}

// setGroup notes a PodGroup, or that there is none. It returns the members that can be placed now and could not before.
func (r *registry) setGroup(key gangview.Key, group *gangview.Group) []*v1.Pod {
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
	g.view, g.refused, g.ready, g.dirty, g.least = nil, nil, false, true, 0
	return r.awaken(g)
}

// sameMember tells whether two states of a pod are the same for its gang.
func sameMember(a, b *v1.Pod) bool {
	return a.ResourceVersion == b.ResourceVersion || a.Spec.NodeName == b.Spec.NodeName && a.Status.Phase == b.Status.Phase &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && len(a.Spec.SchedulingGates) == len(b.Spec.SchedulingGates) &&
		sameMap(a.Labels, b.Labels) && sameMap(a.Annotations, b.Annotations)
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

// pending are the members that have no node, and none that is being bound. The caller holds the lock.
func (r *registry) pending(g *gang) (list []*v1.Pod) {
	for _, pod := range r.build(g).Members {
		if pod.Spec.NodeName == "" && g.bound[pod.UID] == "" && (g.plan == nil || !g.plan.permitted || g.plan.nodes[pod.UID] == "") {
			list = append(list, pod)
		}
	}
	return list
}

// remove forgets a pod, which is as it was last. The result is what has to be released with it.
func (r *registry) remove(pod *v1.Pod) released {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, known := r.ofPod[pod.UID]
	if !known {
		return released{}
	}
	g := r.gangs[key]
	g.pods[pod.UID] = pod
	if pod.Status.Phase == v1.PodSucceeded && g.living() > 0 {
		// It counts as done: the scheduler sees pods that have ended no longer.
		delete(g.bound, pod.UID)
		g.view, g.dirty = nil, true
		return released{}
	}
	return r.drop(pod.UID, key)
}

// living counts the pods of a gang that have not ended.
func (g *gang) living() (count int) {
	for _, pod := range g.pods {
		if pod.Status.Phase != v1.PodSucceeded {
			count++
		}
	}
	return count
}

// drop forgets a pod of a gang. The caller holds the lock.
func (r *registry) drop(uid types.UID, key gangview.Key) released {
	g := r.gangs[key]
	pod := g.pods[uid]
	delete(r.ofPod, uid)
	delete(g.pods, uid)
	delete(g.bound, uid)
	r.holds.remove(uid)
	g.view, g.refused, g.ready, g.dirty, g.least = nil, nil, false, true, 0
	var out released
	if g.plan != nil && g.plan.nodes[uid] != "" {
		if g.plan.permitted {
			delete(g.plan.nodes, uid)
		} else {
			out = r.release(g, "a member was deleted")
		}
	}
	if g.living() == 0 {
		for done := range g.pods {
			delete(r.ofPod, done)
		}
		r.end(g)
		r.holds.dropLost(key)
		delete(r.gangs, key)
		return out
	}
	r.keepPlace(g, pod)
	return out
}

// lostLimit is how long the place of a lost member is held.
const lostLimit = 5 * time.Minute

// keepPlace holds the place of a member that a gang has lost which needs it, so that the member that takes its place gets it before others.
// The caller holds the lock.
func (r *registry) keepPlace(g *gang, pod *v1.Pod) {
	if !g.whole || pod == nil || pod.Spec.NodeName == "" || pod.Status.Phase == v1.PodSucceeded {
		return
	}
	view, have := r.build(g), 0
	for _, member := range view.Members {
		if member.Spec.NodeName != "" {
			have++
		}
	}
	if have == 0 || have >= gangplan.Least(view) {
		return
	}
	r.holds.add(&hold{
		pod: pod.UID, gang: g.key, node: pod.Spec.NodeName, requests: r.requests(pod), amounts: gangplan.Amounts(pod), until: r.clock.Now().Add(lostLimit), lost: true,
	})
}

// end gives up the plan of a gang and what is held for it. The caller holds the lock.
func (r *registry) end(g *gang) {
	if g.plan == nil {
		return
	}
	for uid := range g.plan.nodes {
		r.holds.remove(uid)
	}
	g.plan = nil
}

// released are members whose reservation ends, and why.
type released struct {
	waiting []types.UID
	pods    []*v1.Pod
	reason  string
}

// release gives up the plan of a gang that is not permitted yet. The caller holds the lock, and ends the wait of the members without it.
func (r *registry) release(g *gang, reason string) released {
	out := released{reason: reason}
	if g.plan == nil {
		return out
	}
	for uid := range g.plan.reserved {
		out.waiting = append(out.waiting, uid)
	}
	r.end(g)
	out.pods = r.pending(g)
	return out
}

// note notes whether a gang has its least number of members on nodes. The caller holds the lock.
func (r *registry) note(g *gang) {
	g.dirty = false
	view, have := r.build(g), 0
	for _, pod := range view.Members {
		if pod.Spec.NodeName != "" {
			have++
		}
	}
	switch {
	case have == 0:
		g.partial = time.Time{}
	case have >= gangplan.Least(view):
		g.whole, g.partial = true, time.Time{}
		r.holds.dropLost(g.key)
	case g.partial.IsZero():
		g.partial = r.clock.Now()
	}
}
