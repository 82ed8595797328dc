package gangs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

var start = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// world is a registry with a clock of its own.
type world struct {
	*registry
	clock *clocktesting.FakeClock
	// over are pods that have ended.
	over map[types.UID]bool
}

// newWorld returns the registry of a leader.
func newWorld() *world {
	w := newStandby()
	w.elect()
	return w
}

// newStandby returns the registry of a scheduler that has run no scheduling cycle.
func newStandby() *world {
	w := worldAt(clocktesting.NewFakeClock(start))
	w.server.learn(start)
	return w
}

// worldAt returns the registry of a scheduler that has not read the API server's clock.
func worldAt(c *clocktesting.FakeClock) *world {
	w := &world{newRegistry(gangplan.DefaultLevels(), c, Limits{}, func(*v1.Pod) []fleet.Shape { return []fleet.Shape{{CPU: 1000}} }), c, map[types.UID]bool{}}
	w.serve("berth-scheduler")
	return w
}

// pod returns a member of the gang train, with a node if one is named.
func pod(index, least int, node string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ml", Name: fmt.Sprintf("train-%d", index), UID: types.UID(fmt.Sprintf("uid-%d", index)), CreationTimestamp: metav1.NewTime(start),
		Labels: map[string]string{gangplan.PodGroup: "train", gangplan.MinMember: fmt.Sprint(least)},
	}}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("4"), v1.ResourceCPU: resource.MustParse("1")}}}}
	p.Spec.SchedulerName, p.Spec.NodeName = "berth-scheduler", node
	if node != "" {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(time.Second))}}
	}
	return p
}

func names(pods []*v1.Pod) string {
	var list []string
	for _, p := range pods {
		list = append(list, strings.TrimPrefix(p.Name, "train-"))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// planned plans the pending members of the gang on a node.
func (w *world) planned(t *testing.T, node string, pods ...*v1.Pod) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	list := map[types.UID]gangplanner.Place{}
	for _, p := range pods {
		list[p.UID] = gangplanner.Place{Pod: p, Node: node, Requests: w.requests(p)}
	}
	w.adopt(w.gangs[gangplan.Key{Namespace: "ml", Name: "train"}], list)
}

// TestAwaken: members are brought to the queue when the last one that lacks exists, and not again for each change.
func TestAwaken(t *testing.T) {
	w := newWorld()
	for i := range 3 {
		if out := w.set(pod(i, 4, "")); len(out.pods) > 0 {
			t.Fatalf("after member %d, %s are brought to the queue", i, names(out.pods))
		}
		if text := w.why(pod(i, 4, "")); text == "" {
			t.Fatalf("member %d may enter the queue", i)
		}
	}
	if out := w.set(pod(3, 4, "")); names(out.pods) != "0 1 2 3" {
		t.Errorf("after the last member, %q are brought to the queue", names(out.pods))
	}
	if text := w.why(pod(0, 4, "")); text != "" {
		t.Errorf("member 0 waits: %s", text)
	}
	if out := w.set(pod(4, 4, "")); names(out.pods) != "4" {
		t.Errorf("after a further member, %q are brought to the queue; want itself", names(out.pods))
	}
	w.remove(pod(0, 4, ""))
	w.remove(pod(1, 4, ""))
	if text := w.why(pod(2, 4, "")); text == "" {
		t.Error("member 2 may enter the queue, of 3")
	}
}

// TestReservations checks who waits, who is bound, and what is held in between.
func TestReservations(t *testing.T) {
	held := func(w *world) string {
		var list []string
		for _, h := range w.holds.others(&seeker{}) {
			list = append(list, strings.TrimPrefix(string(h.pod), "uid-"))
		}
		return strings.Join(list, " ")
	}
	tests := map[string]struct {
		run  func(t *testing.T, w *world) released
		want string // who is released, rejected, and what is held
	}{
		"none is reserved": {func(*testing.T, *world) released { return released{} }, "tried [] rejected 0 held [0 1 2]"},
		"one is reserved": {func(_ *testing.T, w *world) released {
			others, _ := w.reserve(pod(0, 3, ""), "n0")
			return released{pods: others}
		}, "tried [1 2] rejected 0 held [1 2]"},
		"one is refused": {func(_ *testing.T, w *world) released {
			w.reserve(pod(0, 3, ""), "n0")
			w.reserve(pod(1, 3, ""), "n0")
			return w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
		}, "tried [0 1 2] rejected 2 held []"},
		"a member is deleted": {func(_ *testing.T, w *world) released {
			w.reserve(pod(0, 3, ""), "n0")
			return w.remove(pod(2, 3, ""))
		}, "tried [0 1] rejected 1 held []"},
		"a member leaves the gang": {func(_ *testing.T, w *world) released {
			w.reserve(pod(0, 3, ""), "n0")
			other := pod(2, 3, "")
			other.Labels = nil
			return w.set(other)
		}, "tried [0 1] rejected 1 held []"},
		"not in time": {func(t *testing.T, w *world) released {
			w.reserve(pod(0, 3, ""), "n0")
			w.clock.Step(w.limits.Reserve)
			if again, _ := w.overdue(); len(again) > 0 {
				t.Errorf("released at its limit")
			}
			w.clock.Step(time.Second)
			again, _ := w.overdue()
			if len(again) != 1 {
				t.Fatalf("%d gangs are released; want 1", len(again))
			}
			return again[0]
		}, "tried [0 1 2] rejected 1 held []"},
		"a binding fails": {func(t *testing.T, w *world) released {
			for i := range 3 {
				w.reserve(pod(i, 3, ""), "n0")
				waiting, complete, _ := w.permit(pod(i, 3, ""))
				if complete != (i == 2) || complete && len(waiting) != 2 {
					t.Errorf("with member %d reserved, complete is %v and %d wait", i, complete, len(waiting))
				}
			}
			w.bind(pod(0, 3, ""), "n0")
			return w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
		}, "tried [1] rejected 0 held [1]"},
		"it is not tried again": {func(t *testing.T, w *world) released {
			for i := range 3 {
				w.reserve(pod(i, 3, ""), "n0")
				w.permit(pod(i, 3, ""))
			}
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.clock.Step(w.limits.Rebind + time.Second)
			w.overdue()
			return released{}
		}, "tried [] rejected 0 held []"},
		"a reservation without a plan": {func(t *testing.T, w *world) released {
			out := w.remove(pod(2, 3, ""))
			if _, ok := w.reserve(pod(0, 3, ""), "n0"); ok {
				t.Error("a member is reserved although the plan was given up")
			}
			return out
		}, "tried [0 1] rejected 0 held []"},
		"another node than that of the plan": {func(t *testing.T, w *world) released {
			if _, ok := w.reserve(pod(0, 3, ""), "n1"); ok {
				t.Error("a member is reserved on another node than its own")
			}
			return released{}
		}, "tried [] rejected 0 held [0 1 2]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			out := test.run(t, w)
			if got := fmt.Sprintf("tried [%s] rejected %d held [%s]", names(out.pods), len(out.waiting), held(w)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestPartly checks which gangs are released that have some members on nodes.
func TestPartly(t *testing.T) {
	tests := map[string]struct {
		pods func(w *world)
		want string // which are deleted 21 s later
	}{
		"too few": {func(w *world) { w.set(pod(0, 3, "n0")); w.set(pod(1, 3, "n1")); w.set(pod(2, 3, "")) }, "0 1"},
		"none":    {func(w *world) { w.set(pod(0, 2, "")); w.set(pod(1, 2, "")) }, ""},
		"enough":  {func(w *world) { w.set(pod(0, 2, "n0")); w.set(pod(1, 2, "n1")); w.set(pod(2, 2, "")) }, ""},
		"it was whole": {func(w *world) {
			w.set(pod(0, 2, "n0"))
			w.set(pod(1, 2, "n1"))
			w.overdue()
			w.remove(pod(1, 2, "n1"))
			w.set(pod(2, 2, ""))
		}, ""},
		"a younger member": {func(w *world) {
			w.set(pod(0, 2, "n0"))
			young := pod(1, 2, "")
			young.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
			w.set(young)
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.pods(w)
			if _, lost := w.overdue(); len(lost) > 0 {
				t.Error("released at once")
			}
			w.clock.Step(w.limits.Release + time.Second)
			got := ""
			_, lost := w.overdue()
			for _, l := range lost {
				got += names(l.pods)
			}
			if got != test.want {
				t.Errorf("the members %q are deleted; want %q", got, test.want)
			}
			if _, lost := w.overdue(); len(lost) > 0 {
				t.Error("deleted again at once")
			}
		})
	}
}

// TestLost: the place of a member that a whole gang has lost is held until another member has it, or the gang needs it no longer.
func TestLost(t *testing.T) {
	tests := map[string]struct {
		run  func(t *testing.T, w *world)
		want string
	}{
		"lost":             {func(_ *testing.T, w *world) { w.remove(pod(1, 2, "n1")) }, "n1"},
		"it has succeeded": {func(_ *testing.T, w *world) { p := pod(1, 2, "n1"); p.Status.Phase = v1.PodSucceeded; w.remove(p) }, ""},
		"the last one":     {func(_ *testing.T, w *world) { w.remove(pod(1, 2, "n1")); w.remove(pod(0, 2, "n0")) }, ""},
		"a surplus one":    {func(_ *testing.T, w *world) { w.set(pod(2, 2, "n2")); w.remove(pod(2, 2, "n2")) }, ""},
		"it was never whole": {func(_ *testing.T, w *world) {
			w.remove(pod(1, 2, "n1"))
			w.gangs[gangplan.Key{Namespace: "ml", Name: "train"}].setPresence(presenceNone)
		}, "n1"},
		"another has it": {func(t *testing.T, w *world) {
			w.remove(pod(1, 2, "n1"))
			w.set(pod(2, 2, ""))
			w.planned(t, "n1", pod(2, 2, ""))
			w.reserve(pod(2, 2, ""), "n1")
		}, ""},
		"whole again": {func(_ *testing.T, w *world) { w.remove(pod(1, 2, "n1")); w.set(pod(2, 2, "n5")); w.overdue() }, ""},
		"after its limit": {func(_ *testing.T, w *world) {
			w.remove(pod(1, 2, "n1"))
			w.clock.Step(w.limits.Lost + time.Second)
			w.overdue()
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.set(pod(0, 2, "n0"))
			w.set(pod(1, 2, "n1"))
			w.overdue()
			test.run(t, w)
			got := ""
			for _, h := range w.holds.others(&seeker{}) {
				got += h.node
			}
			if got != test.want || w.holds.count.Load() != int64(len(w.holds.byPod)) {
				t.Errorf("held on %q; want %q", got, test.want)
			}
		})
	}
}

// nodeInfo is a node of the scheduler's snapshot, as far as holds look at it.
type nodeInfo struct {
	fwk.NodeInfo
	node *v1.Node
	all  amounts
	used amounts
	pods []*v1.Pod
}

// podInfo is a pod of a node.
type podInfo struct {
	fwk.PodInfo
	pod *v1.Pod
}

func (p podInfo) GetPod() *v1.Pod { return p.pod }

type amounts struct {
	fwk.Resource
	cpu  int64
	gpus int64
}

func (n nodeInfo) Node() *v1.Node               { return n.node }
func (n nodeInfo) GetAllocatable() fwk.Resource { return n.all }
func (n nodeInfo) GetRequested() fwk.Resource   { return n.used }
func (n nodeInfo) GetPods() (list []fwk.PodInfo) {
	for _, pod := range n.pods {
		list = append(list, podInfo{pod: pod})
	}
	return list
}
func (a amounts) GetMilliCPU() int64       { return a.cpu }
func (a amounts) GetMemory() int64         { return 1 << 40 }
func (a amounts) GetAllowedPodNumber() int { return 100 }
func (a amounts) GetScalarResources() map[v1.ResourceName]int64 {
	return map[v1.ResourceName]int64{"nvidia.com/gpu": a.gpus}
}

// TestHolds checks which pods a hold keeps from a node: those that request what is held, and too little is left.
func TestHolds(t *testing.T) {
	key := gangplan.Key{Namespace: "ml", Name: "train"}
	gpus := func(n string) v1.ResourceList { return v1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)} }
	tests := map[string]struct {
		gang     gangplan.Key
		node     string
		amounts  v1.ResourceList
		priority int32
		lost     bool
		want     string
	}{
		"too many GPUs":        {node: "n0", amounts: gpus("3"), want: "nvidia.com/gpu"},
		"as many as left":      {node: "n0", amounts: gpus("2")},
		"CPU":                  {node: "n0", amounts: v1.ResourceList{v1.ResourceCPU: resource.MustParse("7500m")}, want: "cpu"},
		"CPU that is left":     {node: "n0", amounts: v1.ResourceList{v1.ResourceCPU: resource.MustParse("7")}},
		"another node":         {node: "n1", amounts: gpus("3")},
		"of the same gang":     {gang: key, node: "n0", amounts: gpus("3")},
		"of a higher priority": {node: "n0", amounts: gpus("3"), priority: 2, want: "nvidia.com/gpu"},
		"of a higher priority, the place is lost": {node: "n0", amounts: gpus("3"), priority: 2, lost: true},
		"of the same priority, the place is lost": {node: "n0", amounts: gpus("3"), priority: 1, lost: true, want: "nvidia.com/gpu"},
		"something else": {node: "n0", amounts: v1.ResourceList{"example.com/nic": resource.MustParse("3")}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHolds()
			h.add(&hold{pod: "a", gang: key, node: "n0", lost: test.lost, priority: 1, amounts: gangplan.Amounts(pod(0, 1, ""))})
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: test.node}}, all: amounts{cpu: 8000, gpus: 8}, used: amounts{gpus: 2}}
			got, held := h.lacks(node, &seeker{key: test.gang, priority: test.priority, amounts: test.amounts}, start)
			if string(got) != test.want || (held != nil) != (test.want != "") || held != nil && held.gang != key {
				t.Errorf("%q is held, %+v; want %q", got, held, test.want)
			}
		})
	}
}

// TestArgs checks the arguments.
func TestArgs(t *testing.T) {
	tests := map[string]struct {
		args string
		want string // the settings, or a part of the error
	}{
		"none":        {"", "[{zone topology.kubernetes.io/zone} {block topology.kubernetes.io/block} {rack topology.kubernetes.io/rack} {clique nvidia.com/gpu.clique} {node kubernetes.io/hostname}] 0s"},
		"levels":      {`{"topologyLevels": [{"name": "pod", "key": "example.com/pod"}], "reserveAfterSeconds": 90}`, "[{pod example.com/pod}] 1m30s"},
		"at once":     {`{"topologyLevels": [{"name": "pod", "key": "example.com/pod"}], "reserveAfterSeconds": 0}`, "[{pod example.com/pod}] 1ns"},
		"never":       {`{"topologyLevels": [{"name": "pod", "key": "example.com/pod"}], "reserveAfterSeconds": -1}`, "[{pod example.com/pod}] -1ns"},
		"negative":    {`{"reserveAfterSeconds": -2}`, "want 0 to 86400, or -1 for no reservations"},
		"too long":    {`{"reserveAfterSeconds": 86401}`, "want 0 to 86400, or -1 for no reservations"},
		"misspelt":    {`{"topologyLevel": []}`, "unknown field"},
		"no name":     {`{"topologyLevels": [{"key": "a"}]}`, "want a name and a label key, each once"},
		"no key":      {`{"topologyLevels": [{"name": "a", "key": "-"}]}`, "want a name and a label key, each once"},
		"twice":       {`{"topologyLevels": [{"name": "a", "key": "a"}, {"name": "b", "key": "a"}]}`, "want a name and a label key, each once"},
		"no object":   {`[]`, "cannot unmarshal"},
		"many levels": {`{"topologyLevels": [` + strings.Repeat(`{"name": "a", "key": "a"},`, 8) + `{"name": "a", "key": "a"}]}`, "want at most 8"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var object runtime.Object
			if test.args != "" {
				object = &runtime.Unknown{Raw: []byte(test.args)}
			}
			args, err := parseArgs(object)
			if got := fmt.Sprint(args.levels, " ", args.reserveAfter, " ", err); err != nil && !strings.Contains(err.Error(), test.want) || err == nil && got != test.want+" <nil>" {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
	if _, err := parseArgs(&v1.Pod{}); err == nil {
		t.Error("a Pod as arguments is no error")
	}
}
