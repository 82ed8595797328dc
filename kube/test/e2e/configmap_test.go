package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// changeWithin is far above the time that a change of the configuration takes on an idle machine, which is logged; the
// documented limit is two seconds.
const changeWithin = 40 * time.Second

// keyedConfigs are configurations that differ in the name of one resource.
func keyedConfigs(replicasOfB int, lineOfC string) map[string]string {
	return map[string]string{
		"default": plainConfig,
		"a":       sharedGPU(1, "timeSlicing", "replicas: 4", "a"),
		"b":       sharedGPU(2, "timeSlicing", fmt.Sprint("replicas: ", replicasOfB), "b"),
		"c":       sharedGPU(3, "timeSlicing", lineOfC, "c"),
	}
}

func sharedGPU(index int, mode, replicas, name string) string {
	return plainConfig + fmt.Sprintf(`gpus:
- select:
    index: [%d]
  sharing:
    mode: %s
    resourceName: nvidia.com/of-%s
    %s
`, index, mode, name, replicas)
}

// testConfigMapAndLabels checks that the node's labels select a key of the ConfigMap, that each change takes effect
// without a restart, and that an invalid one leaves the last valid one in force, even if the agent is killed.
func testConfigMapAndLabels(t *testing.T, l *lab) {
	l.setConfigs(t, keyedConfigs(2, "replicas: 5"))
	whole := nodeGPUs - 1
	changes := []struct {
		what   string
		change func() time.Time
		want   map[string]int
	}{
		{"NVIDIA's label selects", func() time.Time { return l.label(t, map[string]string{labelNVIDIAConfig: "a"}) },
			map[string]int{gpuResource: whole, "nvidia.com/of-a": 4}},
		{"Berth's label has precedence", func() time.Time { return l.label(t, map[string]string{labelConfig: "b"}) },
			map[string]int{gpuResource: whole, "nvidia.com/of-b": 2}},
		{"the ConfigMap is edited", func() time.Time { return l.setConfigs(t, keyedConfigs(3, "replicas: 5")) },
			map[string]int{gpuResource: whole, "nvidia.com/of-b": 3}},
		{"Berth's label is removed", func() time.Time { return l.label(t, map[string]string{labelConfig: ""}) },
			map[string]int{gpuResource: whole, "nvidia.com/of-a": 4}},
		{"NVIDIA's label names another", func() time.Time {
			return l.label(t,
				map[string]string{labelNVIDIAConfig: "c"})
		}, map[string]int{gpuResource: whole, "nvidia.com/of-c": 5}},
	}
	for _, c := range changes {
		at := c.change()
		took := l.waitKubelet(t, c.want).Sub(at)
		t.Logf("%s: applied in the kubelet after %s", c.what, ms(took))
		if took > changeWithin {
			t.Errorf("%s: applied after %s, want at most %s", c.what, took, changeWithin)
		}
	}
	l.waitSource(t, "c")

	witnesses := l.watchPods(t, l.run(t, podRequesting("held", "nvidia.com/of-c", 1))...)
	// A change of this GPU must wait for the pod, and a change of any other must not.
	l.label(t, map[string]string{labelNVIDIAConfig: "b"})
	l.waitKubelet(t, map[string]int{gpuResource: whole - 1, "nvidia.com/of-b": 3})
	l.waitDraining(t, 3, "nvidia.com/of-c", "waits for default/held to end")
	l.label(t, map[string]string{labelNVIDIAConfig: "c"})
	l.waitKubelet(t, map[string]int{gpuResource: whole, "nvidia.com/of-c": 5})
	samples := l.watchOffers(t)
	before := counts(samples.first(t))

	// A typo.
	bad := l.setConfigs(t, keyedConfigs(3, "replicsa: 6"))
	refused, message := l.waitCondition(t, "ConfigAccepted", metav1.ConditionFalse,
		configMap+"/c:10: gpus[0].sharing.replicsa", "did you mean replicas?")
	said := l.waitEvent(t, "ConfigAcceptedRefused", "gpus[0].sharing.replicsa")
	l.waitProblem(t, "CONFIG_REFUSED", true)
	l.waitSource(t, "c")
	t.Logf("a typo: the GPUNode reports it after %s, an event after %s: %s", ms(refused.Sub(bad)), ms(said.Sub(bad)), message)

	// The agent is killed while the typo is there.
	killed := time.Now()
	if err := l.mode.Kill(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	samples.waitFor(t, killed, "the kubelet has no agent", func(o map[string][]string) bool { return len(counts(o)) == 0 })
	if err := l.mode.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	back := l.waitKubelet(t, before)
	l.waitCondition(t, "ConfigAccepted", metav1.ConditionFalse, "gpus[0].sharing.replicsa")
	l.waitProblem(t, "CONFIG_REFUSED", true)
	l.waitSource(t, "c")
	// A key that does not exist is no reason to use another configuration either.
	l.label(t, map[string]string{labelNVIDIAConfig: "defualt"})
	l.waitCondition(t, "ConfigAccepted", metav1.ConditionFalse, labelNVIDIAConfig+"=defualt", "did you mean default?")
	l.label(t, map[string]string{labelNVIDIAConfig: "c"})
	l.waitCondition(t, "ConfigAccepted", metav1.ConditionFalse, "gpus[0].sharing.replicsa")
	taken := samples.stop()
	checkAllOrNothing(t, taken, before)
	t.Logf("the agent killed and started again with the typo there: all devices are back %s after the kill, in %d "+
		"samples never with other devices", ms(back.Sub(killed)), len(taken))

	repaired := l.setConfigs(t, keyedConfigs(3, "replicas: 6"))
	l.waitKubelet(t, map[string]int{gpuResource: whole, "nvidia.com/of-c": 6})
	accepted, _ := l.waitCondition(t, "ConfigAccepted", metav1.ConditionTrue)
	l.waitProblem(t, "CONFIG_REFUSED", false)
	t.Logf("repaired: the GPUNode reports it after %s", ms(accepted.Sub(repaired)))
	l.checkUndisturbed(t, witnesses...)
}

// waitDraining waits until the GPUNode shows how a GPU is still advertised, and why it is draining.
func (l *lab) waitDraining(t testing.TB, index int, resource, why string) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("the GPUNode shows GPU %d as draining", index), func(ctx context.Context) error {
		node, err := l.gpuNode(ctx)
		if err != nil {
			return err
		}
		offered := node.Status.Devices[index].Offered
		if offered == nil || offered.Resource != resource || !strings.Contains(offered.Draining, why) {
			return fmt.Errorf("it shows %+v", offered)
		}
		return nil
	})
}

// waitSource waits until GPUNode and agent report that a key of the ConfigMap is in force.
func (l *lab) waitSource(t testing.TB, key string) {
	t.Helper()
	want := agentNamespace + "/" + configMap + "/" + key
	waitUntil(t, 20*time.Second, "the configuration in force is "+want, func(ctx context.Context) error {
		node, err := l.gpuNode(ctx)
		if err != nil {
			return err
		}
		state, err := l.agentState(ctx)
		if err == nil && (node.Status.Config.Source != want || state.Config.Source != want) {
			err = fmt.Errorf("the GPUNode reports %q, the agent %q", node.Status.Config.Source, state.Config.Source)
		}
		return err
	})
}

// first returns the first sample.
func (w *offerWatch) first(t testing.TB) map[string][]string {
	t.Helper()
	w.waitFor(t, time.Time{}, "the kubelet is asked", func(map[string][]string) bool { return true })
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.samples[0].offers
}

// checkAllOrNothing fails the test for each sample in which a resource has neither the expected number of devices nor,
// while no agent ran, none.
func checkAllOrNothing(t testing.TB, samples []offerSample, want map[string]int) {
	t.Helper()
	for i, s := range samples {
		if s.err != nil {
			t.Errorf("sample %d: %v", i, s.err)
		}
		for name, n := range counts(s.offers) {
			if n != want[name] {
				t.Errorf("sample %d, %s after the first: %s has %d devices, want %d or none", i,
					ms(s.at.Sub(samples[0].at)), name, n, want[name])
			}
		}
	}
}

// migStates records the values of the Node's label of the MIG state.
type migStates struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	seen []string
}

// watchMIGState records the label from now on.
func (l *lab) watchMIGState(t testing.TB) *migStates {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	now, err := l.nodeObject(ctx)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := l.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + l.node.Name(), ResourceVersion: now.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &migStates{cancel: cancel, done: make(chan struct{}), seen: []string{now.Labels[labelMIGState]}}
	go func() {
		defer close(w.done)
		defer nodes.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case event, ok := <-nodes.ResultChan():
				if !ok {
					return
				}
				if node, is := event.Object.(interface{ GetLabels() map[string]string }); is {
					w.add(node.GetLabels()[labelMIGState])
				}
			}
		}
	}()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *migStates) add(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if state != w.seen[len(w.seen)-1] {
		w.seen = append(w.seen, state)
	}
}

// stop returns the values in order; the first is the value at the start.
func (w *migStates) stop() []string {
	w.cancel()
	<-w.done
	return w.seen
}

// layout requests a layout by label and waits until the node has it; the state must go through pending.
func (l *lab) layout(t testing.TB, name string, want map[string]int) {
	t.Helper()
	states := l.watchMIGState(t)
	at := l.label(t, map[string]string{labelMIG: name})
	offered := l.waitKubelet(t, want)
	scheduled := l.waitAllocatableOf(t, want)
	l.waitState(t, "success")
	done := time.Now()
	went := states.stop()
	t.Logf("layout %s: the kubelet has %v after %s, the scheduler after %s; the label went %s, success at the latest after %s",
		name, want, ms(offered.Sub(at)), ms(scheduled.Sub(at)), strings.Join(went, " -> "), ms(done.Sub(at)))
	if !slices.Equal(went[1:], []string{"pending", "success"}) {
		t.Errorf("layout %s: the label went %q, want pending and then success", name, went)
	}
	waitUntil(t, 10*time.Second, "the GPUNode shows layout "+name+" as the hardware has it", func(ctx context.Context) error {
		node, err := l.gpuNode(ctx)
		if err == nil && node.Status.Config.MIGLayout != name {
			err = fmt.Errorf("it shows %q as wanted", node.Status.Config.MIGLayout)
		}
		if err != nil {
			return err
		}
		return l.sameAsHardware(t, node)
	})
}

// sameAsHardware reports where the partitions in the GPUNode differ from those of the hardware.
func (l *lab) sameAsHardware(t testing.TB, node *v1alpha1.GPUNode) error {
	t.Helper()
	machine := hardware(t, l.node.SimDir())
	for _, d := range node.Status.Devices {
		gpuInfo := gpuOf(t, machine, d.UUID)
		var shown, real []string
		for _, m := range d.MIGDevices {
			shown = append(shown, fmt.Sprintf("%s %s at %d", m.UUID, m.Profile, m.Start))
		}
		for _, m := range gpuInfo.MIGDevices {
			real = append(real, fmt.Sprintf("%s %s at %d", m.UUID, m.Profile, m.Start))
		}
		slices.Sort(shown)
		slices.Sort(real)
		if !slices.Equal(shown, real) || d.MIGEnabled != (gpuInfo.MIG == "on") {
			return fmt.Errorf("it shows GPU %d with MIG %v and %q, the hardware has %s and %q", d.Index, d.MIGEnabled,
				shown, gpuInfo.MIG, real)
		}
	}
	return nil
}

// customLayouts is a file in mig-parted's format: lists of GPUs, filters, and a mixed GPU.
const customLayouts = `version: v1
mig-configs:
  custom-mixed:
  - devices: [0, 1]
    mig-enabled: false
  - devices: [2, 3]
    device-filter: "0x20B010DE"
    mig-enabled: true
    mig-devices: {"3g.20gb": 2}
  - devices: [4]
    device-filter: ["0x20B010DE", "0x233010DE"]
    mig-enabled: true
    mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
  - devices: [5, 6, 7]
    mig-enabled: true
    mig-devices: {"7g.40gb": 1}
`

// testLayoutByLabel requests layouts as users of mig-manager do.
func testLayoutByLabel(t *testing.T, l *lab) {
	l.layout(t, "all-1g.5gb", map[string]int{mig1g: 7 * nodeGPUs})
	l.layout(t, "all-balanced", map[string]int{mig1g: 2 * nodeGPUs, mig2g: nodeGPUs, mig3g: nodeGPUs})
	l.setMap(t, layoutsMap, map[string]string{"config.yaml": customLayouts})
	l.layout(t, "custom-mixed", map[string]int{gpuResource: 2, mig1g: 2, mig2g: 1, mig3g: 5, "nvidia.com/mig-7g.40gb": 3})

	// A name that does not exist.
	asked := l.label(t, map[string]string{labelMIG: "custom-mixd"})
	l.waitState(t, "failed")
	failed := time.Now()
	_, message := l.waitCondition(t, "MIGApplied", metav1.ConditionFalse, "custom-mixd", "did you mean custom-mixed?")
	t.Logf("unknown layout: failed after %s: %s", ms(failed.Sub(asked)), message)

	// Disable MIG on all GPUs while one pod holds one device.
	held := l.run(t, podRequesting("held", mig2g, 1))
	witnesses := l.watchPods(t, held...)
	asked = l.label(t, map[string]string{labelMIG: "all-disabled"})
	others := l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs - 1})
	l.waitState(t, "pending")
	_, message = l.waitCondition(t, "MIGApplied", metav1.ConditionFalse, "GPU 4 ", "default/held")
	t.Logf("all-disabled with a pod on GPU 4: the other GPUs are whole after %s: %s", ms(others.Sub(asked)), message)
	for _, gpuInfo := range hardware(t, l.node.SimDir()).GPUs {
		if want := map[bool]string{true: "on", false: "off"}[gpuInfo.Index == 4]; gpuInfo.MIG != want {
			t.Errorf("MIG of GPU %d is %s, want %s", gpuInfo.Index, gpuInfo.MIG, want)
		}
	}
	l.checkUndisturbed(t, witnesses...)
	ended := time.Now()
	if err := l.remove(timeout(t, 30*time.Second), held...); err != nil {
		t.Fatal(err)
	}
	whole := l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs})
	l.waitState(t, "success")
	l.waitCondition(t, "MIGApplied", metav1.ConditionTrue)
	t.Logf("the pod ends: the last GPU is whole %s after its deletion", ms(whole.Sub(ended)))
}

// testLayoutAfterReboot checks that Hopper GPUs, which come up without MIG mode, get their layout back and are not
// advertised as whole GPUs before.
func testLayoutAfterReboot(t *testing.T, l *lab) {
	dir := l.withHardware(t, "h100x8").Dir
	machine, err := sim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	balanced := map[string]int{"nvidia.com/mig-1g.10gb": 2 * nodeGPUs, "nvidia.com/mig-2g.20gb": nodeGPUs,
		"nvidia.com/mig-3g.40gb": nodeGPUs}
	l.label(t, map[string]string{labelMIG: "all-balanced"})
	l.waitKubelet(t, balanced)
	l.waitState(t, "success")

	l.killAgent(t)
	l.waitKubelet(t, map[string]int{})
	if err := errors.Join(machine.Reboot(), os.Remove(filepath.Join(l.node.Root(), stateFolder, "units.json"))); err != nil {
		t.Fatal(err)
	}
	states, samples := l.watchMIGState(t), l.watchOffers(t)
	booted := time.Now()
	if err := l.mode.(*podAgent).startWith(timeout(t, time.Minute), onHardware(dir)); err != nil {
		t.Fatal(err)
	}
	back := l.waitKubelet(t, balanced)
	l.waitState(t, "success")
	taken := samples.stop()
	for _, s := range taken {
		if whole := s.offers[gpuResource]; len(whole) > 0 {
			t.Errorf("%s after the start %d GPUs were advertised whole", ms(s.at.Sub(booted)), len(whole))
		}
	}
	if went := states.stop(); !slices.Equal(went, []string{"success", "pending", "success"}) {
		t.Errorf("the label went %q, want success, pending, success", went)
	}
	t.Logf("after a reboot all MIG devices are back %s after the agent's start; in %d samples no GPU was advertised "+
		"whole", ms(back.Sub(booted)), len(taken))
}
