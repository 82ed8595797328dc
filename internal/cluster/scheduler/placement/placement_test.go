package placement

import (
	"fmt"
	"math"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// TestRank: ranks have the order of the scores, the best is 100, equal scores have equal ranks, and the first 100 scores have ranks of
// their own.
func TestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var before fwk.NodeScoreList
		for i := range rapid.IntRange(1, 300).Draw(t, "nodes") {
			before = append(before, fwk.NodeScore{Name: fmt.Sprint(i), Score: rapid.Int64Range(0, rapid.SampledFrom([]int64{3, 50, math.MaxInt64}).Draw(t, "most")).Draw(t, "score")})
		}
		after := slices.Clone(before)
		rank(after)
		for i := range before {
			better := map[int64]bool{}
			for k := range before {
				if before[k].Score > before[i].Score {
					better[before[k].Score] = true
				}
			}
			if want := max(0, 100-int64(len(better))); after[i].Score != want {
				t.Fatalf("score %d behind %d others has rank %d; want %d", before[i].Score, len(better), after[i].Score, want)
			}
		}
	})
}

// TestRaw: the position decides among equal scores and never between others; no fit is the least.
func TestRaw(t *testing.T) {
	most := fleet.Score(1)<<fleet.ScoreBits - 1
	ascending := []int64{
		raw(fleet.NoFit, 0, false), raw(0, math.MaxInt, false), raw(0, 1, false), raw(0, 0, false), raw(1, 70_000, false), raw(1, 0, false),
		raw(most, 5, false), raw(most, 4, false),
	}
	if !slices.IsSorted(ascending) || len(slices.Compact(slices.Clone(ascending))) != len(ascending) || ascending[0] != 0 {
		t.Errorf("raw scores %v; want 0 and ascending", ascending)
	}
	if raw(7, 1, true) != raw(7, 2, true) || raw(7, 1, true) >= raw(8, 9, true) {
		t.Error("with preferences equal scores are not equal, or others are")
	}
}

func TestHasPreferences(t *testing.T) {
	node := &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1}}}
	pod := []v1.WeightedPodAffinityTerm{{Weight: 1}}
	tests := map[string]struct {
		spec v1.PodSpec
		want bool
	}{
		"none":                     {v1.PodSpec{}, false},
		"required affinity":        {v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{}}}}, false},
		"preferred nodes":          {v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: node}}, true},
		"preferred pods":           {v1.PodSpec{Affinity: &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: pod}}}, true},
		"avoided pods":             {v1.PodSpec{Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: pod}}}, true},
		"spread where possible":    {v1.PodSpec{TopologySpreadConstraints: []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.ScheduleAnyway}}}, true},
		"spread, or do not run it": {v1.PodSpec{TopologySpreadConstraints: []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.DoNotSchedule}}}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := hasPreferences(&v1.Pod{Spec: test.spec}); got != test.want {
				t.Errorf("%v; want %v", got, test.want)
			}
		})
	}
}

// activated records which pods a handle is asked to try again.
type activated struct {
	fwk.Handle
	pods []string
}

func (a *activated) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	var keys []string
	for key := range pods {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	a.pods = append(a.pods, keys...)
}

func waitingPod(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
}

// TestWaiting: when a GPUNode has more free devices, as many of the pods that request them are tried again, by priority and then by how
// long they wait, without those that request more than is free there; a GPUNode with less, and one of another resource, wake none.
func TestWaiting(t *testing.T) {
	gpuNode := func(resource string, held ...bool) *fleetview.Hardware {
		node := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		for i, h := range held {
			d := v1alpha1.GPUDevice{UUID: fmt.Sprint(i), Offered: &v1alpha1.DeviceOffer{Resource: resource}, Health: v1alpha1.DeviceHealth{State: "Healthy"}}
			if h {
				d.Holders = []v1alpha1.Holder{{Kind: "Orphan"}}
			}
			node.Status.Devices = append(node.Status.Devices, d)
		}
		return fleetview.NewReader().Read(node)
	}
	handle := &activated{}
	w := newWaiting(handle, model.New(model.Deps{}))
	gpu := []fleet.Shape{{Resource: "gpu", GPUs: 1}}
	step := func(what string, h *fleetview.Hardware, want ...string) {
		t.Helper()
		handle.pods = nil
		if h == nil {
			w.DropHardware("n")
		} else {
			w.SetHardware(h)
		}
		if !slices.Equal(handle.pods, want) {
			t.Errorf("%s: tried again %v; want %v", what, handle.pods, want)
		}
	}
	step("no pod waits", gpuNode("gpu", true, true))
	for _, p := range []*v1.Pod{waitingPod("old", 0), waitingPod("young", 0), waitingPod("first", 10)} {
		w.add(p, gpu, w.seen())
	}
	w.add(waitingPod("other", 99), []fleet.Shape{{Resource: "mig", GPUs: 1}}, w.seen())
	step("one is free", gpuNode("gpu", false, true), "ml/first")
	step("the same again", gpuNode("gpu", false, true))
	step("less is free", gpuNode("gpu", true, true))
	step("two are free", gpuNode("gpu", false, false), "ml/old", "ml/young")
	w.add(waitingPod("old", 0), gpu, w.seen())
	w.remove("old")
	step("the GPUNode is gone", nil)
	step("it is back, and its pod was bound", gpuNode("gpu", false, false))
	step("another resource", gpuNode("mig", false, false), "ml/other")
	step("none is free any more", gpuNode("gpu", true, true, true, true))
	for gpus, p := range map[int32]*v1.Pod{4: waitingPod("four", 10), 2: waitingPod("two", 5), 1: waitingPod("one", 0)} {
		w.add(p, []fleet.Shape{{Resource: "gpu", GPUs: gpus}}, w.seen())
	}
	step("one is free, for the pods that request one", gpuNode("gpu", false, true, true, true), "ml/one")
	step("a second one is free, for one that requests two", gpuNode("gpu", false, false, true, true), "ml/two")
	step("all are free", gpuNode("gpu", false, false, false, false), "ml/four")
	step("none is free again", gpuNode("gpu", true, true))
	for _, p := range []*v1.Pod{waitingPod("deleted", 10), waitingPod("lost", 9), waitingPod("left", 0)} {
		w.add(p, gpu, w.seen())
	}
	w.handler().OnDelete(waitingPod("deleted", 10))
	w.handler().OnDelete(cache.DeletedFinalStateUnknown{Obj: waitingPod("lost", 9)})
	step("one is free, for the pod that was not deleted", gpuNode("gpu", false, true), "ml/left")

	// A cycle begins, a GPUNode changes, and then the pod is refused.
	missed := func(what string, h *fleetview.Hardware, want ...string) {
		t.Helper()
		handle.pods = nil
		seen := w.seen()
		w.SetHardware(h)
		w.add(waitingPod("late", 0), gpu, seen)
		if !slices.Equal(handle.pods, want) {
			t.Errorf("%s: tried again %v; want %v", what, handle.pods, want)
		}
		w.remove("late")
	}
	missed("more of another resource", gpuNode("mig", false, false, false))
	missed("none is free", gpuNode("gpu", true))
	missed("one is free", gpuNode("gpu", false), "ml/late")
	missed("the same again", gpuNode("gpu", false))
}

// TestWaitingBound: no more pods are kept than the bound, and the one that waits longest is forgotten first.
func TestWaitingBound(t *testing.T) {
	w := newWaiting(&activated{}, model.New(model.Deps{}))
	for i := range maxWaiting + 5 {
		w.add(waitingPod(fmt.Sprint(i), 0), nil, 0)
	}
	if _, old := w.pods["4"]; old || len(w.pods) != maxWaiting {
		t.Errorf("%d pods are kept, the oldest one: %v; want %d without it", len(w.pods), old, maxWaiting)
	}
}

// statuses are why nodes were refused.
type statuses map[string]*fwk.Status

func (s statuses) Get(node string) *fwk.Status { return s[node] }

func (statuses) NodesForStatusCode(fwk.NodeInfoLister, fwk.Code) ([]fwk.NodeInfo, error) {
	return nil, nil
}

// TestRefusals: of the nodes that have the GPUs it is said why they were refused, the most frequent reason first, and no more than three.
func TestRefusals(t *testing.T) {
	status := func(reasons ...string) *fwk.Status { return fwk.NewStatus(fwk.Unschedulable, reasons...) }
	all := statuses{"a": status("node(s) had untolerated taint(s)"), "b": status("Insufficient cpu", "Insufficient memory"), "c": status("Insufficient cpu"),
		"d": status("Too many pods"), "e": status("node(s) were unschedulable"), "f": status()}
	tests := map[string]struct {
		nodes []string
		want  string
	}{
		"none":                 {},
		"one":                  {[]string{"a"}, ": 1 had untolerated taint(s)"},
		"by count, then name":  {[]string{"a", "b", "c", "d"}, ": 2 Insufficient cpu, 1 Insufficient memory, 1 Too many pods"},
		"no status, no reason": {[]string{"f", "g"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := refusals(test.nodes, all); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
