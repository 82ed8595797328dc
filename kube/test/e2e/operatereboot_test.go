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

// envReboots replaces the number of reboots of each subtest, to measure with fewer.
const envReboots = "BERTH_REBOOTS"

// rebootLab is a lab with a node to reboot.
type rebootLab struct {
	*draLab
	// times is the number of reboots, with pods on the node that have one GPU each.
	times, pods int
	// gpus is how many GPUs the node has, of the given architecture.
	gpus         int
	architecture string
	soak         bool
	// layout is the lab of a node with 8 H100.
	layout *draLab
}

// newRebootLab returns a lab for a reboot with 5 pods. BERTH_SOAK=1 makes that 50 with 20 on a node with 20 GPUs, and leaves
// the kubelet's default of 1 minute for syncFrequency. BERTH_REBOOTS replaces the number of reboots.
func newRebootLab(t *testing.T) *rebootLab {
	l := &rebootLab{times: 1, pods: 5, gpus: nodeGPUs, architecture: "Hopper", soak: os.Getenv(envSoak) != ""}
	var o sandbox.Options
	if l.soak {
		l.times, l.pods, l.gpus, l.architecture = 50, 20, 20, "Turing"
		o = sandbox.Options{Profile: "t4x20", NodeProfiles: map[string]string{"node-1": "h100x8"}, KubeletConfig: map[string]any{}}
	}
	if text := os.Getenv(envReboots); text != "" {
		var err error
		if l.times, err = strconv.Atoi(text); err != nil || l.times < 1 {
			t.Fatalf("%s is %q, want a number of reboots from 1", envReboots, text)
		}
	}
	l.draLab = newDRALab(t, o)
	l.layout = l.draLab
	if l.soak {
		l.layout = &draLab{lab: &lab{rig: l.other}}
	}
	t.Logf("%d reboots with %d pods on a node with %d GPUs", l.times, l.pods, l.gpus)
	return l
}

// TestOperateReboot reboots a node with running GPU pods that no controller replaces. It prints what becomes of them with each API:
// the kubelet fails a pod of a device plugin that has not registered yet (kubernetes/kubernetes#125579, #128043), and tries
// again to prepare a claim. With BERTH_SOAK=1 also pods of a plugin of NVIDIA's pattern, and
// an agent that starts before the kubelet.
func TestOperateReboot(t *testing.T) {
	onOwnCluster(t, 2)
	l := newRebootLab(t)
	t.Run("DevicePlugin", func(t *testing.T) { testRebootDevicePlugin(t, l, sandbox.RebootOptions{}) })
	if l.soak { // They take 2 minutes; the first tests another's program, and the second an agent that does not run as it ships.
		t.Run("StockPattern", func(t *testing.T) { testRebootStock(t, l) })
		t.Run("AgentFirst", func(t *testing.T) { testRebootAgentFirst(t, l) })
	}
	t.Run("DRA", func(t *testing.T) { testRebootDRA(t, l) })
	t.Run("Layout", func(t *testing.T) { testRebootLayout(t, l.layout) })
}

// rebootWith reboots the node while pods run on it, and waits until each runs again or has failed.
func (l *rebootLab) rebootWith(t *testing.T, pods []*corev1.Pod, o sandbox.RebootOptions) rebooted {
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

// checkDistinct checks that each pod has one GPU and no two have the same. It returns the GPUs of each.
func (l *rebootLab) checkDistinct(t *testing.T, pods []*corev1.Pod) map[string][]uint32 {
	t.Helper()
	has, holder := map[string][]uint32{}, map[uint32]string{}
	for _, pod := range pods {
		got := l.gpusIn(t, pod, "main")
		has[pod.Name] = got
		if len(got) != 1 || holder[got[0]] != "" {
			t.Errorf("pod %s has the GPUs %v; others have %v", pod.Name, got, holder)
			continue
		}
		holder[got[0]] = pod.Name
	}
	return has
}

// holdersOf returns what the GPUNode has to show of pods with one GPU each.
func holdersOf(pods []*corev1.Pod) map[string]int {
	want := map[string]int{}
	for _, pod := range pods {
		want[pod.Name] = 1
	}
	return want
}

// pluginReboots are reboots with pods that have devices of a device plugin.
type pluginReboots struct {
	sandbox.RebootOptions
	// resource is what each pod has one device of, and devices what the kubelet has when all plugins are registered.
	resource string
	devices  map[string]int
	// check gets the pods before the first reboot, and those that run again after each; after is called when all pods of a reboot are gone.
	check func(back []*corev1.Pod)
	after func(round int)
}

// repeat reboots the node as often as the lab says, each time with new pods.
func (l *rebootLab) repeat(t *testing.T, o pluginReboots) {
	t.Helper()
	refused, back := 0, 0
	began := time.Now()
	for i := range l.times {
		l.waitKubelet(t, o.devices)
		l.waitAllocatableOf(t, map[string]int{gpuResource: l.gpus})
		var pods []*corev1.Pod
		for n := range l.pods {
			pods = append(pods, l.onNode(podWith(fmt.Sprintf("plugin-%d-%d", i, n), o.resource, 1)))
		}
		pods = l.run(t, restarting(pods...)...)
		if i == 0 {
			o.check(pods)
		}
		r := l.rebootWith(t, pods, o.RebootOptions)
		t.Logf("reboot %d: %d of %d pods run again, %d were refused%s, after %s", i+1, len(r.back), l.pods, len(r.refused), reasons(r.refused), ms(r.took))
		o.check(r.back)
		refused, back = refused+len(r.refused), back+len(r.back)
		l.waitKubelet(t, o.devices)
		l.cleanUp(t, pods...)
		o.after(i)
	}
	t.Logf("%d reboots with %d pods: %d pods were refused, %d run again; %s per reboot", l.times, l.pods, refused, back, ms(time.Since(began)/time.Duration(l.times)))
}

// reasons returns the kubelet's different messages about pods that it has refused.
func reasons(refused []*corev1.Pod) string {
	count := map[string]int{}
	for _, pod := range refused {
		count[pod.Status.Message]++
	}
	text := ""
	for _, message := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf(" (%d: %s)", count[message], message)
	}
	return text
}

func testRebootDevicePlugin(t *testing.T, l *rebootLab, o sandbox.RebootOptions) {
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.repeat(t, pluginReboots{
		RebootOptions: o, resource: gpuResource, devices: map[string]int{gpuResource: l.gpus},
		check: func(back []*corev1.Pod) {
			l.checkDistinct(t, back)
			l.waitHolders(t, holdersOf(back))
		},
		after: func(round int) {
			pod := l.run(t, l.onNode(podWithGPUs("after-reboot-"+strconv.Itoa(round), l.gpus)))[0]
			l.checkNodes(t, pod, upTo(uint32(l.gpus)))
			l.cleanUp(t, pod)
		},
	})
}

// testRebootAgentFirst repeats that with an agent that an init system starts before the kubelet. Its device plugin registers as soon as
// the kubelet's socket is there.
func testRebootAgentFirst(t *testing.T, l *rebootLab) {
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

func testRebootDRA(t *testing.T, l *rebootLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(uint32(l.gpus))...)
	var pods []*corev1.Pod
	for n := range l.pods {
		name := "claim-" + strconv.Itoa(n)
		l.claim(t, claimOf(name, gpuRequest("gpu", 1, attribute("architecture", l.architecture))))
		pods = append(pods, podUsing(name, name))
	}
	pods = l.run(t, restarting(pods...)...)
	had := map[string][]uint32{}
	for _, pod := range pods {
		had[pod.Name] = l.checkClaimed(t, pod, 1)
	}
	began := time.Now()
	refused, back := 0, 0
	for i := range l.times {
		r := l.rebootWith(t, pods, sandbox.RebootOptions{})
		if len(r.refused) != 0 || len(r.back) != l.pods {
			t.Errorf("reboot %d: %d of %d pods run again, %d were refused%s; want all to run again", i+1, len(r.back), l.pods, len(r.refused), reasons(r.refused))
		}
		if has := l.checkDistinct(t, r.back); !maps.EqualFunc(had, has, slices.Equal) {
			t.Errorf("reboot %d: the pods have the GPUs %v, before it they had %v", i+1, has, had)
		}
		l.waitPublished(t, upTo(uint32(l.gpus))...)
		t.Logf("reboot %d: %d of %d pods run again, on the same GPUs, after %s", i+1, len(r.back), l.pods, ms(r.took))
		refused, back, pods = refused+len(r.refused), back+len(r.back), r.back
	}
	for _, pod := range pods {
		l.checkClaimed(t, pod, 1)
	}
	t.Logf("%d reboots with %d pods: %d pods were refused, %d run again; %s per reboot", l.times, l.pods, refused, back, ms(time.Since(began)/time.Duration(l.times)))
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
