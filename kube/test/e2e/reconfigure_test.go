package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestReconfigure changes a node's configuration and MIG layout while pods run on it.
func TestReconfigure(t *testing.T) {
	onOwnCluster(t, 1)
	l := newLab(t, sandbox.Options{Profile: "a100x8-40g"})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"AllModesAtOnce", testAllModesAtOnce},
		{"ConfigMapAndLabels", testConfigMapAndLabels},
		{"LayoutByLabel", testLayoutByLabel},
		{"LayoutAfterReboot", testLayoutAfterReboot},
		{"KilledDuringLayouts", testKilledDuringLayouts},
		{"KilledDuringMPS", testKilledDuringMPS},
		{"NothingForbidden", func(t *testing.T, l *lab) { testNothingForbidden(t, l.rig) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l.reset(t)
			start := time.Now()
			test.run(t, l)
			t.Logf("%s took %s", test.name, ms(time.Since(start)))
		})
	}
}

// The resources of the node in all modes.
const (
	wholeResource  = "nvidia.com/whole"
	spareResource  = "nvidia.com/spare"
	slicedResource = "nvidia.com/gpu.shared"
	mpsResource    = "nvidia.com/gpu-mps"
	mig1g          = "nvidia.com/mig-1g.5gb"
	mig2g          = "nvidia.com/mig-2g.10gb"
	mig3g          = "nvidia.com/mig-3g.20gb"
	mig4g          = "nvidia.com/mig-4g.20gb"
	mig1gLarge     = "nvidia.com/mig-1g.10gb"
)

// allModes has GPU 0 whole, 1 time-sliced, 2 shared by MPS and 3 partitioned; short pods run on the others. The tests
// change the rule of GPU 1. Every resource has a new name, so that none has devices of an earlier test that are still
// draining.
func allModes(ruleOfGPU1 string) string {
	return plainConfig + `gpus:
- select: {index: [0]}
  resourceName: ` + wholeResource + `
- select: {index: [1]}
  ` + ruleOfGPU1 + `
- select: {index: [2]}
  sharing: {mode: mps, replicas: 8, resourceName: ` + mpsResource + `}
- select: {index: [3]}
  mig: {devices: {3g.20gb: 1, 2g.10gb: 1, 1g.5gb: 2}}
- select: {index: [4, 5, 6, 7]}
  resourceName: ` + spareResource + "\n"
}

// testAllModesAtOnce runs whole, time-sliced, MPS and MIG side by side, each with a pod, and then changes GPU 1 from
// time-sliced to MIG. The change waits for GPU 1's own pod and affects nothing else on the node.
func testAllModesAtOnce(t *testing.T, l *lab) {
	start := l.setConfigs(t, map[string]string{"default": allModes("sharing: {mode: timeSlicing, replicas: 4, " +
		"renameByDefault: true, timeSlice: short}")})
	before := map[string]int{wholeResource: 1, slicedResource: 4, mpsResource: 8, mig3g: 1, mig2g: 1, mig1g: 2, spareResource: 4}
	ready := l.waitKubelet(t, before)
	l.waitAllocatableOf(t, before)
	t.Logf("eight whole GPUs become all modes side by side: %s after the edit the kubelet has %v", ms(ready.Sub(start)), before)
	l.waitCondition(t, "MIGApplied", metav1.ConditionTrue)

	pods := l.run(t, podRequesting("whole", wholeResource, 1), podRequesting("mps", mpsResource, 1, "mps"), podRequesting("part", mig2g, 1))
	holder := l.run(t, podRequesting("sliced", slicedResource, 1))[0]
	for i, pod := range []*corev1.Pod{pods[0], holder, pods[1], pods[2]} {
		gpuInfos, capabilities := l.nodesOf(t, pod)
		wantCaps := map[string]int{"part": 2}[pod.Name]
		if want := []string{strconv.Itoa(l.gpuInfo(t, i).Minor)}; !slices.Equal(gpuInfos, want) || len(capabilities) != wantCaps {
			t.Errorf("pod %s has the GPUs %v and capabilities %v, want %v and %d", pod.Name, gpuInfos, capabilities, want, wantCaps)
		}
	}
	if pipe := l.envIn(t, pods[1])["CUDA_MPS_PIPE_DIRECTORY"]; pipe == "" || !slices.Contains(l.mountsIn(t, pods[1]), pipe) {
		t.Errorf("pod mps has CUDA_MPS_PIPE_DIRECTORY=%q, which is not a mount point in it", pipe)
	}
	if slice := l.gpuInfo(t, 1).TimeSlice; slice != "Short" {
		t.Errorf("GPU 1 has the time slice %q, want Short", slice)
	}
	witnesses := l.watchPods(t, pods...)
	waiting := l.watchPods(t, holder)
	touched := l.watchTouched(t, slicedResource, gpuResource)

	samples := l.watchOffers(t)
	admitted := l.admitAll(t, spareResource, spareResource, mpsResource, mig1g)
	admitted.waitMore(t, 4)

	// The change, which must wait.
	edit := l.setConfigs(t, map[string]string{"default": allModes("mig: {devices: {4g.20gb: 1, 1g.10gb: 1}}")})
	drained := samples.waitFor(t, edit, "no replica of GPU 1 is healthy",
		func(o map[string][]string) bool { return len(o[slicedResource]) == 0 })
	named, message := l.waitCondition(t, "MIGApplied", metav1.ConditionFalse, "GPU 1 ", "default/sliced")
	said := l.waitEvent(t, "MIGAppliedWaiting", "GPU 1 ", "default/sliced")
	t.Logf("after the edit: %s until no replica of GPU 1 is allocated any more, %s until the GPUNode reports why, %s until an event does: %s",
		ms(drained.Sub(edit)), ms(named.Sub(edit)), ms(said.Sub(edit)), message)
	l.checkNotGiven(t)
	if gpuInfo := l.gpuInfo(t, 1); gpuInfo.MIG != "off" || gpuInfo.MIGAfterReset != "" {
		t.Errorf("GPU 1 is held and its MIG mode is %s, after a reset %q", gpuInfo.MIG, gpuInfo.MIGAfterReset)
	}
	admitted.waitMore(t, 4)
	l.checkUndisturbed(t, append(witnesses, waiting...)...)

	// The pod that holds it ends, and the change takes place.
	ended := time.Now()
	if err := l.remove(timeout(t, 30*time.Second), holder); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	offered := samples.waitFor(t, ended, "the kubelet has the MIG devices of GPU 1", func(o map[string][]string) bool {
		return len(o[mig4g]) == 1 && len(o[mig1gLarge]) == 1 && len(o[slicedResource]) == 0
	})
	after := map[string]int{wholeResource: 1, mpsResource: 8, mig3g: 1, mig2g: 1, mig1g: 2, spareResource: 4, mig4g: 1, mig1gLarge: 1}
	scheduled := l.waitAllocatableOf(t, after)
	applied, _ := l.waitCondition(t, "MIGApplied", metav1.ConditionTrue)
	t.Logf("after the holder's deletion: %s until it is gone, %s until the kubelet has the MIG devices, %s until "+
		"the scheduler has, %s until the GPUNode shows them",
		ms(gone.Sub(ended)), ms(offered.Sub(ended)), ms(scheduled.Sub(ended)), ms(applied.Sub(ended)))
	admitted.waitMore(t, 4)
	admitted.stop(t)
	taken := samples.stop()

	checkSteady(t, taken, wholeResource, mpsResource, mig3g, mig2g, mig1g, spareResource)
	t.Logf("%d pods were created and deleted during the changes", admitted.count())
	l.checkUndisturbed(t, witnesses...)
	touched.check(t, mig4g, mig1gLarge)
	if gpuInfo := l.gpuInfo(t, 1); gpuInfo.MIG != "on" || len(gpuInfo.MIGDevices) != 2 || gpuInfo.TimeSlice != "" {
		t.Errorf("GPU 1 is %+v, want MIG on with 2 devices and the default time slice", gpuInfo)
	}
	newcomer := l.run(t, podRequesting("newcomer", mig4g, 1))[0]
	gpuInfos, capabilities := l.nodesOf(t, newcomer)
	if want := []string{strconv.Itoa(l.gpuInfo(t, 1).Minor)}; !slices.Equal(gpuInfos, want) || len(capabilities) != 2 {
		t.Errorf("a pod on the new MIG device has the GPUs %v and capabilities %v, want %v and 2", gpuInfos, capabilities, want)
	}
}

// checkNotGiven checks that a pod that requests one of the free replicas of the draining GPU gets none.
func (l *lab) checkNotGiven(t testing.TB) {
	t.Helper()
	// Before that, the scheduler could place a pod here and the kubelet would refuse it, which is equally correct.
	waitUntil(t, 20*time.Second, "the Node's status has no allocatable replica", func(ctx context.Context) error {
		node, err := l.nodeObject(ctx)
		if err != nil {
			return err
		}
		if n := node.Status.Allocatable[slicedResource]; !n.IsZero() {
			return fmt.Errorf("it has %s", n.String())
		}
		return nil
	})
	late := podRequesting("late", slicedResource, 1)
	if _, err := l.CreatePod(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	l.waitUnschedulable(t, late)
	l.cleanUp(t, late)
}

// touched is what the agent has done towards the kubelet up to a moment.
type touched struct {
	l       *lab
	agent   int
	but     []string
	stats   map[string]pluginStats
	sockets []string
}

// watchTouched records registrations, lists and sockets of all resources but some, once no device of an earlier
// configuration is draining any more.
func (l *lab) watchTouched(t testing.TB, but ...string) *touched {
	t.Helper()
	waitUntil(t, 20*time.Second, "the agent shows healthy devices only", func(context.Context) error {
		for _, s := range l.pluginStats(t) {
			if !slices.Contains(but, s.Resource) && (!s.Registered || s.Devices != s.Healthy) {
				return fmt.Errorf("it shows %+v", s)
			}
		}
		return nil
	})
	w := &touched{l: l, agent: l.agent(t).PID, but: but, stats: l.pluginStats(t), sockets: l.agentSockets(t)}
	for _, name := range but {
		delete(w.stats, name)
		w.sockets = slices.DeleteFunc(w.sockets, func(s string) bool { return socketOf(s, name) })
	}
	return w
}

// socketOf reports whether a socket belongs to a resource: berth-RESOURCE-INSTANCE.
func socketOf(socket, resource string) bool {
	rest, ok := strings.CutPrefix(socket, "berth-"+strings.TrimPrefix(resource, "nvidia.com/")+"-")
	return ok && !strings.Contains(rest, "-")
}

func (l *lab) pluginStats(t testing.TB) map[string]pluginStats {
	t.Helper()
	state, err := l.agentState(timeout(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]pluginStats{}
	for _, s := range state.Plugin {
		all[s.Resource] = s
	}
	return all
}

// check checks that the same agent runs, with the same sockets, registrations and lists as before; only those of added
// resources may be new.
func (w *touched) check(t testing.TB, added ...string) {
	t.Helper()
	if agents := w.l.agents(t); len(agents) != 1 || agents[0].PID != w.agent {
		t.Errorf("the agent was process %d and is %+v", w.agent, agents)
	}
	now := w.l.pluginStats(t)
	for _, name := range slices.Sorted(maps.Keys(w.stats)) {
		if now[name] != w.stats[name] {
			t.Errorf("the kubelet got a registration or list of %s: it was %+v and is %+v", name, w.stats[name], now[name])
		}
	}
	for _, socket := range w.l.agentSockets(t) {
		if slices.ContainsFunc(w.but, func(name string) bool { return socketOf(socket, name) }) {
			continue
		}
		if !slices.Contains(w.sockets, socket) && !slices.ContainsFunc(added, func(name string) bool { return socketOf(socket, name) }) {
			t.Errorf("socket %s was not there before", socket)
		}
	}
	for _, socket := range w.sockets {
		if !slices.Contains(w.l.agentSockets(t), socket) {
			t.Errorf("socket %s is not there any more", socket)
		}
	}
}
