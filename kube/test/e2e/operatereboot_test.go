package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// admissionFailed is the reason of a pod that the kubelet refuses to admit because of its devices.
const admissionFailed = "UnexpectedAdmissionError"

// rebooted is what became of the pods of a node that was rebooted.
type rebooted struct {
	// back are the pods that run again, refused those that the kubelet has failed.
	back, refused []*corev1.Pod
	// took is the time from the power-off to the last pod's end or start.
	took time.Duration
}

// TestOperateReboot reboots a node with running GPU pods that no controller replaces. It prints what becomes of them with each API:
// the kubelet fails a pod of a device plugin that has not registered yet (kubernetes/kubernetes#125579, #128043), and tries
// again to prepare a claim.
func TestOperateReboot(t *testing.T) {
	var o sandbox.Options
	if os.Getenv(envSoak) != "" {
		o.KubeletConfig = map[string]any{} // the kubelet's own syncFrequency
	}
	l := newDRALab(t, o)
	t.Run("DevicePlugin", func(t *testing.T) { testRebootDevicePlugin(t, l, sandbox.RebootOptions{}) })
	t.Run("AgentFirst", func(t *testing.T) { testRebootAgentFirst(t, l) })
	t.Run("DRA", func(t *testing.T) { testRebootDRA(t, l) })
	t.Run("Layout", func(t *testing.T) { testRebootLayout(t, l) })
}

// reboots returns the number of reboots of each test, and of the pods on the node. BERTH_SOAK=1 runs 10 with 8 pods, and
// with the kubelet's default of 1 minute for syncFrequency.
func reboots() (times, pods int) {
	if os.Getenv(envSoak) != "" {
		return 10, 8
	}
	return 2, 5
}

// rebootWith reboots the node while pods run on it, and waits until each runs again or has failed.
func (l *draLab) rebootWith(t *testing.T, pods []*corev1.Pod, o sandbox.RebootOptions) rebooted {
	t.Helper()
	began := time.Now()
	if err := l.node.Reboot(timeout(t, time.Minute), o); err != nil {
		t.Fatal(err)
	}
	var r rebooted
	waitUntil(t, 3*time.Minute, "each pod runs again or has failed", func(ctx context.Context) error {
		r = rebooted{}
		for _, pod := range pods {
			now, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			switch {
			case now.Status.Phase == corev1.PodFailed && now.Status.Reason == admissionFailed:
				r.refused = append(r.refused, now)
			case now.Status.Phase == corev1.PodRunning && len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].State.Running != nil &&
				now.Status.ContainerStatuses[0].State.Running.StartedAt.After(began.Truncate(time.Second).Add(-time.Second)) && now.Status.ContainerStatuses[0].RestartCount > restarts(pod):
				r.back = append(r.back, now)
			default:
				return fmt.Errorf("pod %s is %s (%s)", now.Name, now.Status.Phase, now.Status.Message)
			}
		}
		return nil
	})
	r.took = time.Since(began)
	return r
}

// restarts returns how often a pod's container had been restarted.
func restarts(pod *corev1.Pod) int32 {
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

// restarting makes the kubelet restart a pod's container, as it does for the pods of a controller.
func restarting(pods ...*corev1.Pod) []*corev1.Pod {
	for _, pod := range pods {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	return pods
}

// checkDistinct checks that each pod has one GPU and no two have the same.
func (l *draLab) checkDistinct(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	holder := map[uint32]string{}
	for _, pod := range pods {
		got := l.gpusIn(t, pod, "main")
		if len(got) != 1 || holder[got[0]] != "" {
			t.Errorf("pod %s has the GPUs %v; others have %v", pod.Name, got, holder)
			continue
		}
		holder[got[0]] = pod.Name
	}
}

// holdersOf returns what the GPUNode has to show of pods with one GPU each.
func holdersOf(pods []*corev1.Pod) map[string]int {
	want := map[string]int{}
	for _, pod := range pods {
		want[pod.Name] = 1
	}
	return want
}

// testRebootDevicePlugin returns how many pods were refused, and how many run again.
func testRebootDevicePlugin(t *testing.T, l *draLab, o sandbox.RebootOptions) (refused, back int) {
	t.Helper()
	l.setConfigs(t, map[string]string{"default": plainConfig})
	times, count := reboots()
	for i := range times {
		l.waitAllocatableOf(t, map[string]int{gpuResource: 8})
		var pods []*corev1.Pod
		for n := range count {
			pods = append(pods, l.onNode(podWithGPUs(fmt.Sprintf("plugin-%d-%d", i, n), 1)))
		}
		pods = l.run(t, restarting(pods...)...)
		r := l.rebootWith(t, pods, o)
		l.checkDistinct(t, r.back)
		l.waitHolders(t, holdersOf(r.back))
		l.waitKubelet(t, map[string]int{gpuResource: 8})
		t.Logf("reboot %d: %d of %d pods run again, %d were refused, after %s", i+1, len(r.back), count, len(r.refused), ms(r.took))
		refused, back = refused+len(r.refused), back+len(r.back)
		l.cleanUp(t, pods...)
		pod := l.run(t, l.onNode(podWithGPUs("after-reboot-"+strconv.Itoa(i), 8)))[0]
		l.checkNodes(t, pod, upTo(8))
		l.cleanUp(t, pod)
	}
	t.Logf("%d reboots with %d pods: %d pods were refused, %d run again", times, count, refused, back)
	return refused, back
}

// testRebootAgentFirst repeats that with an agent that an init system starts before the kubelet. Its device plugin registers as soon as
// the kubelet's socket is there.
func testRebootAgentFirst(t *testing.T, l *draLab) {
	shipped, host := l.mode, &hostAgent{node: l.node}
	if err := shipped.Remove(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	l.mode = host
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l.mode = shipped
		if err := errors.Join(host.Remove(ctx), shipped.Start(ctx)); err != nil {
			t.Error(err)
		}
	})
	if err := host.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	testRebootDevicePlugin(t, l, sandbox.RebootOptions{AgentProcess: true})
}

func testRebootDRA(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(8)...)
	times, count := reboots()
	var pods []*corev1.Pod
	for n := range count {
		name := "claim-" + strconv.Itoa(n)
		l.claim(t, claimOf(name, gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
		pods = append(pods, podUsing(name, name))
	}
	pods = l.run(t, restarting(pods...)...)
	had := map[string][]uint32{}
	for _, pod := range pods {
		had[pod.Name] = l.checkClaimed(t, pod, 1)
	}
	for i := range times {
		r := l.rebootWith(t, pods, sandbox.RebootOptions{})
		if len(r.refused) != 0 || len(r.back) != count {
			t.Errorf("reboot %d: %d of %d pods run again, %d were refused; want all to run again", i+1, len(r.back), count, len(r.refused))
		}
		l.checkDistinct(t, r.back)
		has := map[string][]uint32{}
		for _, pod := range r.back {
			has[pod.Name] = l.checkClaimed(t, pod, 1)
		}
		if !maps.EqualFunc(had, has, slices.Equal) {
			t.Errorf("reboot %d: the pods have the GPUs %v, before it they had %v", i+1, has, had)
		}
		l.waitPublished(t, upTo(8)...)
		t.Logf("reboot %d: %d of %d pods run again, on the same GPUs, after %s", i+1, len(r.back), count, ms(r.took))
		pods = r.back
	}
}

// testRebootLayout checks that MIG devices, which a reboot removes from GPUs of this kind, are made again.
func testRebootLayout(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.waitAllocatableOf(t, map[string]int{gpuResource: 8})
	l.label(t, map[string]string{labelMIG: "all-balanced"})
	balanced := map[string]int{"nvidia.com/mig-1g.10gb": 16, "nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 8}
	l.waitKubelet(t, balanced)
	began := time.Now()
	if err := l.node.Reboot(timeout(t, time.Minute), sandbox.RebootOptions{}); err != nil {
		t.Fatal(err)
	}
	back := l.waitKubelet(t, balanced)
	t.Logf("the MIG devices are advertised again %s after the power-off", ms(back.Sub(began)))
}
