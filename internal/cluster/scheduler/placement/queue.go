package placement

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// maxWaiting bounds the pods that a change of a GPUNode can bring back to the queue. The others come back by the events of the scheduler,
// or after the time after which it tries every pod again.
const maxWaiting = 10_000

// EventsToRegister returns the events after which a pod that Filter has refused may fit: a pod ends, or a node changes. Changes of
// GPUNodes come through waiting: the scheduler would not start where they are not defined.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodScaleDown}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint}},
	}, nil
}

// afterPod brings a pod back when one that requests extended resources has ended.
func (p *Plugin) afterPod(_ klog.Logger, _ *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	pod, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	for i := range pod.Spec.Containers {
		for name := range pod.Spec.Containers[i].Resources.Limits {
			if strings.Contains(string(name), "/") {
				return fwk.Queue, nil
			}
		}
	}
	return fwk.QueueSkip, nil
}

// waiting has the pods that do not fit, and gets what GPUNodes say: when a node has more free devices than before, as many of the pods
// that request them, and no more than are free there, are tried again.
type waiting struct {
	handle fwk.Handle
	model  *model.Model

	mu     sync.Mutex
	pods   map[types.UID]waiter
	number uint64
	free   map[string]map[string]int64 // by node and resource
	// rises is how often a node got more free devices, and risen what it was when one got more of a resource.
	rises uint64
	risen map[string]uint64
}

// waiter is a pod with its place in the order.
type waiter struct {
	pod *v1.Pod
	// devices are how many it requests, by resource.
	devices map[string]int64
	number  uint64
}

func newWaiting(handle fwk.Handle, m *model.Model) *waiting {
	return &waiting{handle: handle, model: m, pods: map[types.UID]waiter{}, free: map[string]map[string]int64{}, risen: map[string]uint64{}}
}

// seen returns what a scheduling cycle that begins now knows.
func (w *waiting) seen() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rises
}

// add notes that a pod waits, which was refused in a cycle that has seen so much. When a node has got more of what it requests since then,
// the pod is tried again at once: no other event may follow.
func (w *waiting) add(pod *v1.Pod, requests []fleet.Shape, seen uint64) {
	if w.note(pod, requests, seen) {
		w.handle.Activate(klog.Background(), map[string]*v1.Pod{podKey(pod): pod})
	}
}

// note adds a pod to those that wait, or tells that it has missed something.
func (w *waiting) note(pod *v1.Pod, requests []fleet.Shape, seen uint64) (missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(requests, func(s fleet.Shape) bool { return w.risen[s.Resource] > seen }) {
		delete(w.pods, pod.UID)
		return true
	}
	old, known := w.pods[pod.UID]
	if !known && len(w.pods) >= maxWaiting {
		w.dropOldest()
	}
	made := waiter{pod: pod, number: old.number, devices: map[string]int64{}}
	if !known {
		w.number++
		made.number = w.number
	}
	for _, s := range requests {
		if s.Resource != "" {
			made.devices[s.Resource] += int64(s.GPUs)
		}
	}
	w.pods[pod.UID] = made
	return false
}

// dropOldest forgets the pod that waits longest.
func (w *waiting) dropOldest() {
	var oldest types.UID
	number := ^uint64(0)
	for uid, waits := range w.pods {
		if waits.number < number {
			oldest, number = uid, waits.number
		}
	}
	delete(w.pods, oldest)
}

// handler forgets pods that are deleted.
func (w *waiting) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if pod, ok := object.(*v1.Pod); ok {
			w.remove(pod.UID)
		}
	}}
}

func (w *waiting) remove(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, pod)
}

// SetHardware passes on what a GPUNode says, and wakes pods.
func (w *waiting) SetHardware(h *fleetview.Hardware) {
	w.model.SetHardware(h)
	w.wake(h.Node, h.Free())
}

// DropHardware passes on that a node has no GPUNode.
func (w *waiting) DropHardware(node string) {
	w.model.DropHardware(node)
	w.wake(node, nil)
}

// wake tries as many waiting pods again as a node has more devices.
func (w *waiting) wake(node string, free map[string]int64) {
	w.mu.Lock()
	before := w.free[node]
	w.free[node] = free
	if free == nil {
		delete(w.free, node)
	}
	pods := map[string]*v1.Pod{}
	for name, count := range free {
		if more := count - before[name]; more > 0 {
			w.rises++
			w.risen[name] = w.rises
			w.pick(name, count, int(more), pods)
		}
	}
	w.mu.Unlock()
	if len(pods) > 0 {
		w.handle.Activate(klog.Background(), pods)
	}
}

// pick takes the pods that request a resource of which so much is free on a node, by priority and then the one that waits longest, and
// forgets them: they come back when they still do not fit. Those that request more than is free there stay.
func (w *waiting) pick(resource string, free int64, most int, pods map[string]*v1.Pod) {
	var list []waiter
	for _, waits := range w.pods {
		if devices, requests := waits.devices[resource]; requests && devices <= free {
			list = append(list, waits)
		}
	}
	slices.SortFunc(list, func(a, b waiter) int {
		return cmp.Or(-cmp.Compare(priority(a.pod), priority(b.pod)), cmp.Compare(a.number, b.number))
	})
	for _, waits := range list[:min(len(list), most)] {
		pods[podKey(waits.pod)] = waits.pod
		delete(w.pods, waits.pod.UID)
	}
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// PostFilter says in one sentence why the pod waits; the scheduler adds it to the pod's condition. It changes nothing.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, refused fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := read(state)
	if c == nil || !c.gpus {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	p.waiting.add(pod, c.requests, c.seen)
	if _, err := state.Read(model.GangState); err == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable) // The gang waits as a whole, and its plugin says why.
	}
	sentence, fits := p.sentence(c.requests)
	if fits {
		sentence += refusals(p.fitting(c), refused)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, sentence)
}

// fitting returns the names of the nodes on which the GPUs of the pod fit.
func (p *Plugin) fitting(c *cycle) (names []string) {
	for i, score := range c.scores {
		if score >= 0 {
			names = append(names, p.model.View(i).Node.Name)
		}
	}
	return names
}

// mostRefusals is how many reasons a sentence has.
const mostRefusals = 3

// refusals says why the other plugins have refused these nodes: each reason with the number of nodes, the most frequent first.
func refusals(nodes []string, refused fwk.NodeToStatusReader) string {
	counts := map[string]int{}
	for _, name := range nodes {
		status := refused.Get(name)
		if status == nil {
			continue
		}
		for _, reason := range status.Reasons() {
			counts[strings.TrimPrefix(reason, "node(s) ")]++
		}
	}
	reasons := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var words []string
	for _, reason := range reasons[:min(len(reasons), mostRefusals)] {
		words = append(words, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}

// sentence says what lacks, by the request that fits on the fewest nodes, and whether it fits on some.
func (p *Plugin) sentence(requests []fleet.Shape) (text string, fits bool) {
	worst, found := fleet.Explanation{}, false
	for _, s := range requests {
		if s.GPUs == 0 {
			continue
		}
		if e := p.model.Explain(s); !found || e.Fits < worst.Fits {
			worst, found = e, true
		}
	}
	if worst.Fits > 0 {
		return fmt.Sprintf("berth: %d of %d nodes have the GPUs, but the pod cannot run there", worst.Fits, worst.Nodes), true
	}
	for _, lack := range worst.Lacks {
		if lack.Lack != fleet.Resource {
			return fmt.Sprintf("berth: no node has %s%s; nearest is %s: %s", wanted(worst.Shape), beside(lack.Lack), lack.Nearest, lack.Reason), false
		}
	}
	return fmt.Sprintf("berth: no node offers %s", worst.Shape.Resource), false
}

// beside says what a node has to have besides GPUs that are free.
func beside(lack fleet.Lack) string {
	switch lack {
	case fleet.CPU:
		return " and the CPU that the pod requests"
	case fleet.Memory:
		return " and the memory that the pod requests"
	case fleet.Model:
		return " of a model that the pod accepts"
	}
	return ""
}

func wanted(s fleet.Shape) string { return fmt.Sprintf("%d free %s", s.GPUs, s.Resource) }
