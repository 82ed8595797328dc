package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The settings of the agent whose health, labels and metrics are tested. Intervals are short to keep the tests short.
const (
	healthPoll     = 2 * time.Second
	healthDeadline = 2 * time.Second
	healthSettings = "pollInterval: 2s\nscanDeadline: 2s\nsampleInterval: 1s\ndcgmNames: true\n"
	// fourReplicas makes four replicas of GPU 0, partitions GPU 1 and advertises the others whole.
	fourReplicas = `gpus:
- select: {index: [0]}
  sharing: {mode: timeSlicing, replicas: 4, renameByDefault: true}
- select: {index: [1]}
  mig: {devices: {3g.20gb: 1, 1g.5gb: 3}}
`
	// plainGPUs advertises all GPUs whole, whatever they were before.
	plainGPUs = "gpus:\n- select: {}\n  mig: {layout: all-disabled}\n"
	// noticed is far above the time that an idle machine needs to report an event to the kubelet.
	noticed = 2 * time.Second
	mig1gs  = "nvidia.com/mig-1g.5gb"
)

// healthLab is a node of its own whose agent follows a file.
type healthLab struct {
	*lab
	file string
}

// TestHealth breaks the GPUs of one node in every way, and checks health classes, labels and metrics.
func TestHealth(t *testing.T) {
	onOwnCluster(t, 1)
	h := &healthLab{file: filepath.Join(t.TempDir(), "agent.yaml")}
	h.configure(t, plainGPUs)
	c := ownCluster(t, sandbox.Options{Profile: "a100x8-40g", Agent: configured(h.file)})
	h.lab = &lab{rig: newRig(c)}
	var err error
	if h.machine, err = sim.Open(h.node.SimDir()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, settings string
		want           map[string]int
		run            func(*testing.T, *healthLab)
	}{
		{"Labels", plainGPUs, map[string]int{gpuResource: 8}, testLabels},
		{"OneLostOfEight", plainGPUs, map[string]int{gpuResource: 8}, testOneLost},
		{"HungCall", plainGPUs, map[string]int{gpuResource: 8}, testHungCall},
		{"XIDOfSharedGPU", fourReplicas, sharedOffers(), testXIDOfSharedGPU},
		{"XIDOfMIGDevice", fourReplicas, sharedOffers(), testXIDOfMIGDevice},
		{"PodsInMetrics", fourReplicas, sharedOffers(), testPodsInMetrics},
		{"LabelsOfLayout", fourReplicas, sharedOffers(), testLabelsOfLayout},
		{"Uninstall", plainGPUs, map[string]int{gpuResource: 8}, testUninstallLabels},
	} {
		ok := t.Run(test.name, func(t *testing.T) {
			if err := h.machine.Clear(sim.ClearAll); err != nil {
				t.Fatal(err)
			}
			h.configure(t, test.settings)
			h.waitAllocatableOf(t, test.want)
			start := time.Now()
			test.run(t, h)
			t.Logf("%s took %s", test.name, ms(time.Since(start)))
		})
		if !ok && len(h.agents(t)) != 1 {
			t.FailNow()
		}
	}
}

func sharedOffers() map[string]int {
	return map[string]int{gpuResource: 6, sharedResource: 4, "nvidia.com/mig-3g.20gb": 1, mig1gs: 3}
}

func (h *healthLab) configure(t testing.TB, settings string) {
	t.Helper()
	(&sharingRig{file: h.file}).configure(t, healthSettings+settings)
}

// inject injects a fault and returns the time at which it did.
func (h *healthLab) inject(t testing.TB, fault sim.Fault) time.Time {
	t.Helper()
	at := time.Now()
	if err := h.machine.Inject(fault); err != nil {
		t.Fatal(err)
	}
	return at
}

// repair removes the faults of a GPU and returns the time at which it did.
func (h *healthLab) repair(t testing.TB, uuid string) time.Time {
	t.Helper()
	at := time.Now()
	if err := h.machine.Clear(uuid); err != nil {
		t.Fatal(err)
	}
	return at
}

// waitSoon polls the kubelet every 5 ms until the healthy devices are as wanted, and returns when that was.
func (h *healthLab) waitSoon(t testing.TB, limit time.Duration, what string, is func(map[string][]string) bool) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := h.healthyIDs(ctx)
		if err == nil && is(now) {
			return time.Now()
		}
		select {
		case <-ctx.Done():
			t.Fatalf("wait until %s: after %s the kubelet has %v (%v)", what, limit, counts(now), err)
		case <-tick.C:
		}
	}
}

// waitNodeCondition waits until the Node's condition about its GPUs has the status and contains all texts.
func (h *healthLab) waitNodeCondition(t testing.TB, status corev1.ConditionStatus, texts ...string) *corev1.NodeCondition {
	t.Helper()
	var found *corev1.NodeCondition
	waitUntil(t, 15*time.Second, fmt.Sprintf("condition GPUsHealthy of the Node is %s with %q", status, texts),
		func(ctx context.Context) error {
			node, err := h.nodeObject(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "GPUsHealthy" })
			if i < 0 {
				return errors.New("there is none")
			}
			if found = &node.Status.Conditions[i]; found.Status != status || !hasAll(found.Message, texts) {
				return fmt.Errorf("it is %s: %s", found.Status, found.Message)
			}
			return nil
		})
	return found
}

// waitTaints waits until the Node has exactly these taints, by key.
func (h *healthLab) waitTaints(t testing.TB, want ...string) {
	t.Helper()
	waitUntil(t, 15*time.Second, fmt.Sprintf("the Node has the taints %v", want), func(ctx context.Context) error {
		node, err := h.nodeObject(ctx)
		if err != nil {
			return err
		}
		var got []string
		for _, taint := range node.Spec.Taints {
			got = append(got, taint.Key)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// kill ends the agent with SIGKILL and starts it again with the current settings of its file.
func (h *healthLab) kill(t testing.TB) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	if err := h.node.KillAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.mode.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// testXIDOfSharedGPU checks that an XID makes all four replicas of a GPU unhealthy and nothing else, that every view
// shows it with the pod's name, that killing the agent changes none of this, and that all replicas are back once the
// GPU is repaired.
func testXIDOfSharedGPU(t *testing.T, h *healthLab) {
	gpuInfo := h.gpuInfo(t, 0)
	holder := h.run(t, podRequesting("sliced", sharedResource, 1))[0]
	witnesses := h.watchPods(t, holder)
	before := h.waitNodeCondition(t, corev1.ConditionTrue, "every GPU is healthy")

	want := sharedOffers()
	delete(want, sharedResource)
	broken := h.inject(t, sim.Fault{GPU: gpuInfo.UUID, XID: 79, Recovery: "node-reboot"})
	took := h.waitSoon(t, 10*time.Second, "no replica of GPU 0 is healthy", func(now map[string][]string) bool {
		return maps.Equal(counts(now), want)
	}).Sub(broken)
	t.Logf("XID 79 of a GPU with 4 replicas: the kubelet has all 4 as unhealthy after %s", ms(took))
	if took > noticed {
		t.Errorf("unhealthy for the kubelet after %s, want at most %s", took, noticed)
	}
	condition := h.waitNodeCondition(t, corev1.ConditionFalse, "GPU 0 ("+gpuInfo.UUID+") is NeedsReboot")
	if !condition.LastTransitionTime.After(before.LastTransitionTime.Time) && time.Since(before.LastTransitionTime.Time) > 2*time.Second {
		t.Errorf("the condition changed at %s, and is False since %s", before.LastTransitionTime, condition.LastTransitionTime)
	}
	said := h.waitEvent(t, "GPUNeedsReboot", "GPU 0 ("+gpuInfo.UUID+")", "XID79", "held by default/sliced").Sub(broken)
	t.Logf("an event on the Node names the pod after %s", ms(said))
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "NeedsReboot", "XID79")
	page := h.waitMetrics(t, "GPU 0 is reported unhealthy", func(p metricsPage) error {
		return p.wants(map[string]float64{
			`berth_gpu_healthy{index="0"}`: 0, `berth_gpu_healthy{index="2"}`: 1,
			`berth_gpu_health_state{index="0",state="NeedsReboot"}`: 1, `berth_gpu_health_state{index="0",state="Healthy"}`: 0,
			`berth_gpu_health_cause{index="0",code="XID79"}`: 1, `berth_gpu_xid_errors_total{index="0",xid="79"}`: 1,
		})
	})
	if more := page.find("berth_gpu_health_cause", map[string]string{"index": "2"}); len(more) > 0 {
		t.Errorf("GPU 2 is healthy and has causes: %v", more)
	}
	row := h.rowOf(t, gpuInfo.UUID)
	for _, cell := range []string{"NeedsReboot", "XID79", "default/sliced"} {
		if !strings.Contains(row, cell) {
			t.Errorf("berth gpus prints %q, want %q in it", row, cell)
		}
	}
	h.checkDoctor(t, 1, "XID79")

	// The agent is killed while the fault persists. The new configuration adds the taint to the Node; foreign taints
	// stay.
	h.foreignTaint(t)
	h.configure(t, "taintUnhealthy: true\n"+fourReplicas)
	samples := h.watchOffers(t)
	killed := time.Now()
	h.kill(t)
	h.waitTaints(t, "berth.dev/gpu-unhealthy", taintForeign)
	h.waitScans(t, 2)
	for _, s := range samples.stop() {
		if s.err == nil && len(s.offers[sharedResource]) > 0 {
			t.Errorf("%s after the agent was killed the next one advertises %v", ms(s.at.Sub(killed)), s.offers[sharedResource])
			break
		}
	}
	h.waitMetrics(t, "the new agent reports the cause", func(p metricsPage) error {
		return p.wants(map[string]float64{`berth_gpu_health_cause{index="0",code="XID79"}`: 1, `berth_gpu_healthy{index="0"}`: 0})
	})
	h.checkUndisturbed(t, witnesses...)

	repaired := h.repair(t, gpuInfo.UUID)
	back := h.waitSoon(t, 20*time.Second, "all replicas are healthy", func(now map[string][]string) bool {
		return maps.Equal(counts(now), sharedOffers())
	}).Sub(repaired)
	t.Logf("cleared: verified and advertised again after %s", ms(back))
	h.waitNodeCondition(t, corev1.ConditionTrue, "every GPU is healthy")
	h.waitEvent(t, "GPUHealthy", gpuInfo.UUID)
	h.waitTaints(t, taintForeign)
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "Healthy", "")
	h.checkUndisturbed(t, witnesses...)
}

const taintForeign = "berth.example/foreign"

// foreignTaint adds a taint that is not Berth's to the Node, until the test ends.
func (h *healthLab) foreignTaint(t testing.TB) {
	t.Helper()
	set := func(ctx context.Context, taints []corev1.Taint) error {
		node, err := h.nodeObject(ctx)
		if err != nil {
			return err
		}
		node.Spec.Taints = append(slices.DeleteFunc(node.Spec.Taints,
			func(o corev1.Taint) bool { return o.Key == taintForeign }), taints...)
		_, err = h.Client().CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	}
	change := func(ctx context.Context, taints ...corev1.Taint) error {
		return poll(ctx, "the Node's taints are changed", func() error { return set(ctx, taints) })
	}
	if err := change(timeout(t, 10*time.Second), corev1.Taint{Key: taintForeign, Effect: corev1.TaintEffectPreferNoSchedule}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := change(ctx); err != nil {
			t.Error(err)
		}
	})
}

// waitScans waits until the agent has scanned the hardware so many times from now on, once per poll.
func (h *healthLab) waitScans(t testing.TB, n int) {
	t.Helper()
	// Nothing counts scans from outside, so wait for the longest time that they can take.
	select {
	case <-time.After(time.Duration(n) * healthPoll):
	case <-t.Context().Done():
	}
}

// testXIDOfMIGDevice checks that a contained memory error of one MIG device changes nothing while the driver requests
// nothing. If the driver requests a drain, no new pod gets a device of the GPU, and all pods continue. An error that
// needs a reset makes all its MIG devices unhealthy.
func testXIDOfMIGDevice(t *testing.T, h *healthLab) {
	pods := h.run(t, podRequesting("part-a", mig1gs, 1), podRequesting("part-b", mig1gs, 1))
	witnesses := h.watchPods(t, pods...)
	bad := h.idsOf(t, pods[0])[0]
	gpuInfo := h.gpuInfo(t, 1)

	samples := h.watchOffers(t)
	broken := h.inject(t, sim.Fault{GPU: bad, XID: 94})
	h.waitEvent(t, "GPUDegraded", bad, "XID94", "held by default/part-a")
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "Degraded", "ECC_DOUBLE_BIT")
	h.waitScans(t, 1)
	for _, s := range samples.stop() {
		if s.err == nil && !maps.Equal(counts(s.offers), sharedOffers()) {
			t.Errorf("%s after a contained error the kubelet has %v", ms(s.at.Sub(broken)), s.offers)
			break
		}
	}
	h.waitMetrics(t, "the XID was counted", func(p metricsPage) error {
		return p.wants(map[string]float64{`berth_gpu_xid_errors_total{index="1",xid="94"}`: 1, `berth_gpu_healthy{index="1"}`: 1})
	})

	gone := sharedOffers()
	delete(gone, mig1gs)
	delete(gone, "nvidia.com/mig-3g.20gb")
	h.inject(t, sim.Fault{GPU: gpuInfo.UUID, Recovery: "drain-and-reset"})
	h.waitSoon(t, 10*time.Second, "no MIG device of GPU 1 is advertised", func(now map[string][]string) bool {
		return maps.Equal(counts(now), gone)
	})
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "Draining", "RECOVERY_ACTION")
	h.checkUndisturbed(t, witnesses...)
	h.repair(t, gpuInfo.UUID)
	h.waitSoon(t, 20*time.Second, "all MIG devices are healthy", func(now map[string][]string) bool {
		return maps.Equal(counts(now), sharedOffers())
	})
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "Healthy", "")

	// An error that needs a reset of the GPU makes all its MIG devices unhealthy.
	broken = h.inject(t, sim.Fault{GPU: bad, XID: 95, Recovery: "gpu-reset"})
	took := h.waitSoon(t, 10*time.Second, "all MIG devices of GPU 1 are unhealthy", func(now map[string][]string) bool {
		return maps.Equal(counts(now), gone)
	}).Sub(broken)
	t.Logf("XID 95 of a MIG device, which needs a reset: its siblings are unhealthy after %s", ms(took))
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "NeedsReset", "XID95")
	repaired := h.repair(t, gpuInfo.UUID)
	took = h.waitSoon(t, 20*time.Second, "all MIG devices are healthy", func(now map[string][]string) bool {
		return maps.Equal(counts(now), sharedOffers())
	}).Sub(repaired)
	t.Logf("cleared: verified and advertised again after %s", ms(took))
}

// testOneLost checks that one GPU of eight that is lost without an event is noticed at the next scan, and that the
// other seven are allocated, measured and labelled as before.
func testOneLost(t *testing.T, h *healthLab) {
	gpuInfo := h.gpuInfo(t, 7)
	lost := h.inject(t, sim.Fault{GPU: gpuInfo.UUID, LostSilently: true})
	took := h.waitSoon(t, 20*time.Second, "seven GPUs are healthy", func(now map[string][]string) bool {
		return len(now[gpuResource]) == nodeGPUs-1 && !slices.Contains(now[gpuResource], gpuInfo.UUID)
	}).Sub(lost)
	t.Logf("a GPU lost without an event: unhealthy for the kubelet after %s (the poll is %s)", ms(took), healthPoll)
	if limit := healthPoll + noticed; took > limit {
		t.Errorf("unhealthy for the kubelet after %s, want at most %s", took, limit)
	}
	h.waitAllocatableOf(t, map[string]int{gpuResource: nodeGPUs - 1})
	h.waitLabels(t, "seven GPUs", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{"nvidia.com/gpu.count": "7", "berth.dev/gpu.healthy": "7",
			"berth.dev/gpu.unhealthy": "1"})
	})
	pods := h.run(t, podWithGPUs("rest-a", 4), podWithGPUs("rest-b", 3))
	for _, pod := range pods {
		if ids := h.idsOf(t, pod); slices.Contains(ids, gpuInfo.UUID) {
			t.Errorf("pod %s got the lost GPU: %v", pod.Name, ids)
		}
	}
	for index := range nodeGPUs - 1 {
		if err := h.machine.SetWork(fmt.Sprint(index), sim.Work{SM: uint32(10 + index)}); err != nil {
			t.Fatal(err)
		}
	}
	page := h.waitMetrics(t, "the other seven are measured", func(p metricsPage) error {
		want := map[string]float64{`berth_gpu_healthy{index="7"}`: 0, `berth_gpu_health_state{index="7",state="Gone"}`: 1}
		for index := range nodeGPUs - 1 {
			want[fmt.Sprintf(`berth_gpu_healthy{index="%d"}`, index)] = 1
			want[fmt.Sprintf(`berth_gpu_utilization_ratio{index="%d"}`, index)] = float64(10+index) / 100
		}
		return p.wants(want)
	})
	if stale := page.find("berth_gpu_temperature_celsius", map[string]string{"index": "7"}); len(stale) > 0 {
		t.Errorf("the lost GPU has a temperature: %v", stale)
	}
	h.waitNodeCondition(t, corev1.ConditionFalse, "GPU 7")
	h.checkDoctor(t, 1, "GPU_LOST")

	repaired := h.repair(t, gpuInfo.UUID)
	took = h.waitSoon(t, 20*time.Second, "eight GPUs are healthy", func(now map[string][]string) bool {
		return len(now[gpuResource]) == nodeGPUs
	}).Sub(repaired)
	t.Logf("found again: healthy for the kubelet after %s", ms(took))
	h.waitLabels(t, "eight GPUs", func(labels map[string]string) error {
		return wantLabels(labels, map[string]string{"nvidia.com/gpu.count": "8", "berth.dev/gpu.healthy": "8",
			"berth.dev/gpu.unhealthy": "0"})
	})
	h.waitNodeCondition(t, corev1.ConditionTrue)
	h.checkDoctor(t, 0)
}

// rowOf returns the row of a device in the table of berth gpus, run outside the cluster.
func (h *healthLab) rowOf(t testing.TB, uuid string) string {
	t.Helper()
	row := ""
	waitUntil(t, 10*time.Second, "berth gpus lists "+uuid, func(context.Context) error {
		table := h.berth(t, "gpus", "--kubeconfig", h.KubeconfigPath())
		for line := range strings.Lines(table.out) {
			if strings.Contains(line, uuid) {
				row = line
				return nil
			}
		}
		return fmt.Errorf("it ends with %d:\n%s%s", table.code, table.out, table.err)
	})
	return row
}
