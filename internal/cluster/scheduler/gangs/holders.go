package gangs

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// lower returns the pods on nodes that a gang of a priority can end, the most important first. A gang ends as a whole, but for its surplus:
// members above its least number, those of the highest index. A group of Kubernetes' own scheduling ends as a whole. Pods that are being
// deleted and end soon are the least important ones, the one that ends first the least; the second result has only these. Other pods that
// are being deleted are in neither: nothing ends them earlier. The lock is taken for one node at a time, since the cycles of other pods
// need it.
func (r *registry) lower(nodes []fwk.NodeInfo, key gangplan.Key, priority int32) (list, terminating []gangplanner.Holder) {
	now := r.server.now()
	units := map[string][]*v1.Pod{}
	gangs := map[string]*gang{}
	var deleted []*v1.Pod
	for _, node := range nodes {
		r.mu.Lock()
		for _, info := range node.GetPods() {
			pod := info.GetPod()
			if pod.DeletionTimestamp != nil {
				if endsSoon(pod, now) && !r.stuck(pod.UID) {
					deleted = append(deleted, pod)
				}
				continue
			}
			if corev1helpers.PodPriority(pod) >= priority {
				continue
			}
			if name, of := r.unit(pod); of == nil || of.key != key {
				units[name] = append(units[name], pod)
				gangs[name] = of
			}
		}
		r.mu.Unlock()
	}
	over := deletedUnits(deleted)
	if len(units) == 0 && len(over) == 0 {
		return nil, nil
	}
	running := slices.Clone(over)
	for name, pods := range units {
		r.mu.Lock()
		running = append(running, r.divide(name, gangs[name], pods)...)
		r.mu.Unlock()
	}
	return holders(running), holders(over)
}

const (
	// soon is how far ahead the end of a pod can be that is being deleted and is waited for; soonPreempted that of one that a scheduler has
	// ended for others. A scheduler that has started again does not know for which gang it ended them: it must not end more for that gang.
	soon          = time.Minute
	soonPreempted = 15 * time.Minute
	// longOver is how long after its end such a pod is waited for: one that is still there may never end, since a finalizer or a node that
	// is lost keeps it.
	longOver = 5 * time.Minute
)

// endsSoon tells whether a pod that is being deleted is waited for. Its deletionTimestamp is when its containers have had the time to end
// (k8s.io/apiserver 0.37.1, pkg/registry/rest/delete.go:163).
func endsSoon(pod *v1.Pod, now time.Time) bool {
	left := pod.DeletionTimestamp.Sub(now)
	return left <= ahead(pod) && left >= -longOver
}

// ahead returns how far ahead the end of a pod can be that is being deleted.
func ahead(pod *v1.Pod) time.Duration {
	if slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	}) {
		return soonPreempted
	}
	return soon
}

// deletedUnits returns units of pods that are being deleted, each alone. Their ranks are below all priorities, in the order in which they
// end.
func deletedUnits(pods []*v1.Pod) []unit {
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(a.DeletionTimestamp.Compare(b.DeletionTimestamp.Time), strings.Compare(string(a.UID), string(b.UID)))
	})
	list := make([]unit, len(pods))
	for i, pod := range pods {
		list[i] = newUnit("pod/"+string(pod.UID), []*v1.Pod{pod}, 0)
		list[i].rank = math.MinInt32 + int32(i)
	}
	return list
}

// floor is the lowest priority of the pods on nodes in one state of these; pods that are being deleted and end soon have the lowest one,
// and others that are being deleted none. until is when one of these ends soon, by the API server's clock; zero for never.
type floor struct {
	version  uint64
	priority int32
	until    time.Time
}

// endable tells whether a gang of a priority can end any pod on nodes. It looks at the pods once for each version of their state.
func (r *registry) endable(nodes []fwk.NodeInfo, version uint64, priority int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.server.now()
	if f := r.line.floor; f == nil || f.version != version || !f.until.IsZero() && !now.Before(f.until) {
		r.line.floor = &floor{version: version, priority: math.MaxInt32}
		for _, node := range nodes {
			for _, info := range node.GetPods() {
				r.line.floor.count(info.GetPod(), now)
			}
		}
	}
	return r.line.floor.priority < priority
}

// count counts a pod.
func (f *floor) count(pod *v1.Pod, now time.Time) {
	switch {
	case pod.DeletionTimestamp == nil:
		f.priority = min(f.priority, corev1helpers.PodPriority(pod))
	case endsSoon(pod, now):
		f.priority = math.MinInt32
	default:
		if at := pod.DeletionTimestamp.Add(-ahead(pod)); at.After(now) && (f.until.IsZero() || at.Before(f.until)) {
			f.until = at
		}
	}
}

// unit is pods that end together.
type unit struct {
	name string
	pods []*v1.Pod
	rank int32
	// started is when the first one started.
	started int64
	// surplus is the number of the unit in the surplus of its gang, from 1 on; 0 is none.
	surplus int
}

// GroupOf names the gang or pod group of a pod, empty for none.
func GroupOf(pod *v1.Pod) string {
	if key, member := gangplan.KeyOf(pod); member {
		return gangUnit(key, key.String())
	}
	return podGroupUnit(pod)
}

// gangUnit names a gang: gangs of two APIs can have one name.
func gangUnit(key gangplan.Key, name string) string {
	return "gang/" + key.Source.String() + "/" + name
}

// podGroupUnit names the pod group of a pod, empty for none.
func podGroupUnit(pod *v1.Pod) string {
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return "group/" + pod.Namespace + "/" + *group.PodGroupName
	}
	return ""
}

// unit names what a pod ends with, and returns its gang. The caller holds the lock.
func (r *registry) unit(pod *v1.Pod) (name string, of *gang) {
	if g := r.of(pod); g != nil {
		return gangUnit(g.key, g.name), g
	}
	return cmp.Or(podGroupUnit(pod), "pod/"+string(pod.UID)), nil
}

// divide returns the units of pods on nodes that belong together.
func (r *registry) divide(name string, g *gang, pods []*v1.Pod) []unit {
	core := len(pods)
	if g != nil {
		view := r.build(g)
		rank := map[*v1.Pod]int{}
		at := map[string]int{}
		for i, pod := range view.Members {
			at[string(pod.UID)] = i
		}
		for _, pod := range pods {
			i, member := at[string(pod.UID)]
			if !member {
				i = len(at)
			}
			rank[pod] = i
		}
		slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Or(cmp.Compare(rank[a], rank[b]), strings.Compare(a.Name, b.Name)) })
		if view.Problem == "" && view.Min > 0 {
			core = min(core, max(1, gangplan.Least(view)))
		}
	}
	list := []unit{newUnit(name, pods[:core], 0)}
	for i, pod := range pods[core:] {
		list = append(list, newUnit(name, []*v1.Pod{pod}, i+1))
	}
	return list
}

func newUnit(name string, pods []*v1.Pod, surplus int) unit {
	u := unit{name: name, pods: pods, rank: corev1helpers.PodPriority(pods[0]), started: gangplanner.Started(pods), surplus: surplus}
	for _, pod := range pods {
		u.rank = max(u.rank, corev1helpers.PodPriority(pod))
	}
	return u
}

// holders returns units as holders, the most important first.
func holders(list []unit) []gangplanner.Holder {
	slices.SortFunc(list, func(a, b unit) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.started, b.started), cmp.Compare(a.name, b.name), cmp.Compare(a.surplus, b.surplus))
	})
	made := make([]gangplanner.Holder, len(list))
	surplus := map[string][]int{}
	for i, u := range list {
		made[i] = gangplanner.Holder{Pods: u.pods, Rank: u.rank}
		if u.surplus > 0 {
			surplus[u.name] = append(surplus[u.name], i)
		}
	}
	for i, u := range list {
		if u.surplus == 0 {
			made[i].Surplus = surplus[u.name]
		}
	}
	return made
}

// ending returns the pods on nodes that end by themselves, those that end last first. Their rank is the order of these times; the highest
// is that of pods of which it is not known.
func (r *registry) ending(nodes []fwk.NodeInfo) []gangplanner.Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.server.now()
	type endingPod struct {
		pod *v1.Pod
		end time.Time
	}
	var list []endingPod
	for _, node := range nodes {
		for _, info := range node.GetPods() {
			if end, ends := endOf(info.GetPod(), now); ends && !r.stuck(info.GetPod().UID) {
				list = append(list, endingPod{info.GetPod(), end})
			}
		}
	}
	slices.SortFunc(list, func(a, b endingPod) int {
		return cmp.Or(cmp.Compare(last(b.end), last(a.end)), strings.Compare(string(a.pod.UID), string(b.pod.UID)))
	})
	made, rank := make([]gangplanner.Holder, len(list)), int32(0)
	for i := len(list) - 1; i >= 0; i-- {
		if i == len(list)-1 || !list[i].end.Equal(list[i+1].end) {
			rank++
		}
		made[i] = gangplanner.Holder{Pods: []*v1.Pod{list[i].pod}, Rank: rank}
	}
	return made
}

// last orders times, of which zero is the last.
func last(t time.Time) int64 {
	if t.IsZero() {
		return 1<<63 - 1
	}
	return t.UnixNano()
}
