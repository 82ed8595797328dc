package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// taintHealth is the taint of a device that is not healthy.
const taintHealth = pool.DefaultDriver + "/health"

// onNode makes a pod run on the first node.
func (l *draLab) onNode(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: l.node.Name()}
	return pod
}

// testDRATogether runs every kind of allocation on one node, and breaks one GPU.
func testDRATogether(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig + `gpus:
- select: {index: [0]}
  resourceName: ` + wholeResource + `
- select: {index: [1]}
  sharing: {mode: timeSlicing, replicas: 4, resourceName: ` + slicedResource + `}
- select: {index: [2]}
  sharing: {mode: mps, replicas: 4, resourceName: ` + mpsResource + `}
- select: {index: [7]}
  allocation: {api: dra}
  dynamicMIG: true
- select: {}
  allocation: {api: dra}
`})
	l.waitDevices(t, 4+26)
	l.waitAllocatableOf(t, map[string]int{wholeResource: 1, slicedResource: 4, mpsResource: 4})
	l.claim(t, claimOf("own", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), claimOf("part", migRequest("gpu", "2g.20gb", 1)), sharedClaim("shared", limitsOfClaim))
	pods := []*corev1.Pod{
		podUsing("own", "own"), l.onNode(podRequesting("whole", wholeResource, 1)), l.onNode(podRequesting("sliced", slicedResource, 1)),
		l.onNode(podRequesting("mps", mpsResource, 1, "mps")), l.onNode(podRequesting("extended", gpuResource, 1)), podUsing("part", "part"),
		clientOf("client", "shared"),
	}
	pods = l.run(t, pods...)
	witnesses := l.watchPods(t, pods...)
	own := l.checkClaimed(t, pods[0], 1)[0]
	for i, pod := range pods[1:4] {
		if got := l.gpusIn(t, pod, "main"); !slices.Equal(got, []uint32{uint32(i)}) {
			t.Errorf("pod %s has the GPUs %v, want %d", pod.Name, got, i)
		}
	}
	extended := l.gpusIn(t, pods[4], "main")
	if len(extended) != 1 || extended[0] < 3 || extended[0] == own {
		t.Errorf("the pod with the extended resource has the GPUs %v", extended)
	}
	if status := pods[4].Status.ExtendedResourceClaimStatus; status == nil {
		t.Error("the pod with the extended resource has no claim")
	}
	if on := l.checkMIG(t, pods[5], 1); on != 7 {
		t.Errorf("the claim for a MIG device has GPU %d, want 7", on)
	}
	l.checkClientOfClaim(t, pods[6], l.mpsOf(t, l.checkClaimed(t, pods[6], 1)[0]))
	before := l.taints(t)
	l.inject(t, int(own), 79)
	l.waitTaint(t, own, taintHealth)
	after := l.taints(t)
	if delete(after, own); len(before) > 0 || len(after) > 0 {
		t.Errorf("other GPUs have the taints %v, and had %v", after, before)
	}
	l.waitKubelet(t, map[string]int{wholeResource: 1, slicedResource: 4, mpsResource: 4})
	l.checkUndisturbed(t, witnesses...)
	if err := l.machine.Clear(sim.ClearAll); err != nil {
		t.Fatal(err)
	}
	l.waitNoTaint(t)
	if err := l.remove(t.Context(), pods...); err != nil {
		t.Fatal(err)
	}
	l.waitNothingHeld(t)
	l.reset(t) // MIG stays on when the last MIG device of a dynamic GPU is gone.
}

// inject makes a GPU of the first node report an XID.
func (l *draLab) inject(t testing.TB, index int, xid uint64) time.Time {
	t.Helper()
	at := time.Now()
	if err := l.machine.Inject(sim.Fault{GPU: l.gpuInfo(t, index).UUID, XID: xid, Recovery: "node-reboot"}); err != nil {
		t.Fatal(err)
	}
	return at
}

// taints returns the keys of the taints of the first node's GPUs by minor number.
func (l *draLab) taints(t testing.TB) map[uint32][]string {
	t.Helper()
	found, err := l.taintsNow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (l *draLab) taintsNow(ctx context.Context) (map[uint32][]string, error) {
	all, err := l.slices(ctx)
	if err != nil {
		return nil, err
	}
	found := map[uint32][]string{}
	for i := range all {
		for _, device := range all[i].Spec.Devices {
			minor, err := l.minorOf(device.Name)
			if err != nil {
				return nil, err
			}
			for _, taint := range device.Taints {
				found[minor] = append(found[minor], taint.Key)
			}
		}
	}
	return found, nil
}

func (l *draLab) waitNoTaint(t testing.TB) time.Time {
	t.Helper()
	waitUntil(t, 60*time.Second, "no device has a taint", func(ctx context.Context) error {
		found, err := l.taintsNow(ctx)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("they are %v", found)
		}
		return err
	})
	return time.Now()
}

// testDRAFaults breaks a GPU that a claim has and one that is free, and repairs both.
func testDRAFaults(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(8)...)
	l.claim(t, claimOf("held", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
	pod := l.run(t, podUsing("held", "held"))[0]
	held := l.checkClaimed(t, pod, 1)[0]
	l.waitPodHealth(t, pod, "Healthy")
	for what, index := range map[string]uint32{"held": held, "free": (held + 1) % 8} {
		at := l.inject(t, int(index), 79)
		t.Logf("XID 79 on a GPU that is %s: its taint is in the API server after %s", what, ms(l.waitTaint(t, index, taintHealth).Sub(at)))
	}
	l.waitPodHealth(t, pod, "Unhealthy")
	at := time.Now()
	if err := l.machine.Clear(sim.ClearAll); err != nil {
		t.Fatal(err)
	}
	t.Logf("no device has a taint %s after the repair", ms(l.waitNoTaint(t).Sub(at)))
	l.waitPodHealth(t, pod, "Healthy")
}

// waitPodHealth waits until the pod's status has the health of its claim's device.
func (l *draLab) waitPodHealth(t testing.TB, pod *corev1.Pod, want string) {
	t.Helper()
	waitUntil(t, 90*time.Second, fmt.Sprintf("the status of pod %s says that its device is %s", pod.Name, want), func(ctx context.Context) error {
		now, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var health []string
		for _, container := range now.Status.ContainerStatuses {
			for _, resource := range container.AllocatedResourcesStatus {
				for _, one := range resource.Resources {
					health = append(health, string(one.Health))
				}
			}
		}
		if !slices.Equal(health, []string{want}) {
			return fmt.Errorf("the devices are %q", health)
		}
		return nil
	})
}

// testDRAKills ends the agent and the kubelet while claims are prepared and released.
func testDRAKills(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(8)...)
	claim := func(name string) *corev1.Pod {
		l.claim(t, claimOf(name, gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
		return podUsing(name, name)
	}
	t.Run("PreparedLater", func(t *testing.T) {
		l.kill(t)
		pod := claim("later")
		t.Cleanup(func() { l.cleanUp(t, pod) })
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		l.waitPodEvent(t, pod, "FailedPrepareDynamicResources")
		l.start(t)
		running, err := l.WaitPhase(timeout(t, 2*time.Minute), pod.Namespace, pod.Name, corev1.PodRunning)
		if err != nil {
			t.Fatal(err)
		}
		l.checkClaimed(t, running, 1)
	})
	l.waitNothingHeld(t)
	t.Run("ReleasedLater", func(t *testing.T) {
		pod := l.run(t, claim("released"))[0]
		l.checkClaimed(t, pod, 1)
		l.kill(t)
		// The pod stays until its claim is released.
		if err := l.Client().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		l.start(t)
		l.waitNothingHeld(t)
	})
	t.Run("LostLedger", func(t *testing.T) {
		pods := l.run(t, claim("lost-a"), claim("lost-b"), claim("lost-c"))
		before, err := l.holdings(t.Context())
		if err != nil || len(before) != 3 {
			t.Fatalf("the ledger has %v (%v), want three devices", before, err)
		}
		l.kill(t)
		files, err := filepath.Glob(filepath.Join(l.node.AgentDir(), ledger.File+"*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("the ledger's files are %v (%v)", files, err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		l.start(t)
		waitUntil(t, 20*time.Second, "the ledger has the claims again", func(ctx context.Context) error {
			now, err := l.holdings(ctx)
			if err == nil && fmt.Sprint(now) != fmt.Sprint(before) {
				err = fmt.Errorf("it has %v, and had %v", now, before)
			}
			return err
		})
		for _, pod := range pods {
			l.checkClaimed(t, pod, 1)
		}
		l.checkClaimed(t, l.run(t, claim("next"))[0], 1)
	})
	l.waitNothingHeld(t)
	t.Run("KubeletRestarted", func(t *testing.T) {
		pod := l.run(t, claim("kept"))[0]
		stop := l.watchSlices(t)
		at := time.Now()
		if err := l.node.RestartKubelet(timeout(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		registered := l.waitRegistered(t, at)
		time.Sleep(5 * time.Second) // The kubelet deletes the slices of all drivers at its start, before or after the registration.
		gone, back := stop()
		if back.Sub(registered) > 20*time.Second {
			t.Errorf("the slices are there %s after the registration, want 1 s", ms(back.Sub(registered)))
		}
		t.Logf("the kubelet has deleted the slices %s after its restart began; they are there %s after it has registered the driver",
			ms(gone.Sub(at)), ms(max(0, back.Sub(registered))))
		l.waitPublished(t, upTo(8)...)
		l.checkClaimed(t, pod, 1)
		l.checkClaimed(t, l.run(t, claim("after-restart"))[0], 1)
	})
}

// testDRAPluginStops repeats an experiment in which two drivers give one GPU to two pods: a pod has all GPUs of the device
// plugin, the plugin stops, and the scheduler turns to the DeviceClass of the same resource.
func testDRAPluginStops(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.waitPublished(t)
	l.waitAllocatableOf(t, map[string]int{gpuResource: 8})
	all := l.run(t, l.onNode(podRequesting("all-by-plugin", gpuResource, 8)))[0]
	watched := l.watchPods(t, all)
	l.kill(t)
	l.waitAllocatableOf(t, map[string]int{})
	next := l.onNode(podRequesting("next", gpuResource, 1))
	t.Cleanup(func() { l.cleanUp(t, next) })
	if _, err := l.CreatePod(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	l.waitPending(t, next)
	// The same GPUs change to the other API, while the pod has them and no agent runs.
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.start(t)
	time.Sleep(10 * time.Second) // The scheduler tries again when the Node or a slice changes.
	l.waitPublished(t)
	l.waitPending(t, next)
	l.checkUndisturbed(t, watched...)
	if err := l.remove(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	running, err := l.WaitPhase(timeout(t, 2*time.Minute), next.Namespace, next.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.gpusIn(t, running, "main"); len(got) != 1 || running.Status.ExtendedResourceClaimStatus == nil {
		t.Errorf("the pod has the GPUs %v, claim %v", got, running.Status.ExtendedResourceClaimStatus)
	}
	l.waitPublished(t, upTo(8)...)
	// And back, while the pod with the claim runs: its GPU is not advertised.
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.waitKubelet(t, map[string]int{gpuResource: 7})
	l.checkUndisturbed(t, l.watchPods(t, running)...)
	if err := l.remove(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	l.waitKubelet(t, map[string]int{gpuResource: 8})
	l.waitNothingHeld(t)
}

// waitPending waits until the scheduler has found no node for a pod.
func (l *draLab) waitPending(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	waitUntil(t, 40*time.Second, "pod "+pod.Name+" is unschedulable", func(ctx context.Context) error {
		now, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("it is on %q, %s", now.Spec.NodeName, now.Status.Phase)
	})
}

// watchSlices watches the first node's slices until stop is called, which returns when they were missing first, and when they were back
// last. The time without them can be shorter than two readings are apart.
func (l *draLab) watchSlices(t testing.TB) (stop func() (gone, back time.Time)) {
	t.Helper()
	client := l.Client().ResourceV1().ResourceSlices()
	options := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + l.node.Name()}
	list, err := client.List(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	options.ResourceVersion = list.ResourceVersion
	changes, err := client.Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	complete := map[string]bool{} // the slices with all GPUs
	for i := range list.Items {
		complete[list.Items[i].Name] = len(list.Items[i].Spec.Devices) == nodeGPUs
	}
	var stopped atomic.Bool
	var gone, back time.Time
	done := make(chan struct{})
	go func() {
		defer close(done)
		for change := range changes.ResultChan() {
			slice, ok := change.Object.(*resourceapi.ResourceSlice)
			if !ok { // A watch that is stopped may end with an error.
				if !stopped.Load() {
					t.Errorf("the watch ended: %v", change.Object)
				}
				return
			}
			was := slices.Contains(slices.Collect(maps.Values(complete)), true)
			complete[slice.Name] = change.Type != watch.Deleted && len(slice.Spec.Devices) == nodeGPUs
			switch is := slices.Contains(slices.Collect(maps.Values(complete)), true); {
			case was && !is && gone.IsZero():
				gone = time.Now()
			case !was && is:
				back = time.Now()
			}
		}
	}()
	return func() (time.Time, time.Time) {
		stopped.Store(true)
		changes.Stop()
		<-done
		if gone.IsZero() || back.IsZero() {
			t.Errorf("the slices were missing from %s to %s, want both", gone, back)
		}
		return gone, back
	}
}

func (l *draLab) kill(t testing.TB) {
	t.Helper()
	if err := l.node.KillAgent(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

func (l *draLab) start(t testing.TB) {
	t.Helper()
	if err := l.mode.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// waitPodEvent waits until an event about a pod has the reason.
func (l *draLab) waitPodEvent(t testing.TB, pod *corev1.Pod, reason string) {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("pod %s has the event %s", pod.Name, reason), func(ctx context.Context) error {
		n, err := l.podEvents(ctx, pod.Name, reason)
		if err == nil && n == 0 {
			err = errors.New("it has none")
		}
		return err
	})
}

// podEvents returns the number of events with the reason about pods whose names begin so.
func (l *draLab) podEvents(ctx context.Context, prefix, reason string) (int, error) {
	list, err := l.Client().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].InvolvedObject.Name, prefix) {
			n++
		}
	}
	return n, nil
}

// waitRegistered waits until the agent has logged a registration with the kubelet after a time, and returns when that was.
func (l *draLab) waitRegistered(t testing.TB, after time.Time) time.Time {
	t.Helper()
	var at time.Time
	waitUntil(t, time.Minute, "the kubelet has registered the driver", func(context.Context) error {
		for line := range strings.Lines(l.agentLog()) {
			if !strings.Contains(line, "Registered the DRA driver") {
				continue
			}
			_, text, _ := strings.Cut(line, "time=")
			text, _, _ = strings.Cut(text, " ")
			if when, err := time.Parse(time.RFC3339Nano, text); err == nil && when.After(after) {
				at = when
			}
		}
		if at.IsZero() {
			return errors.New("it has not")
		}
		return nil
	})
	return at
}
