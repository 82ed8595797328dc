package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchAPIs reads the kubelet's list and the slices of the first node until stop is called, which fails the test for each GPU that was in
// both. The kubelet is read before and after the slices: a GPU that has only changed its API is not in both of its answers.
func (l *draLab) watchAPIs(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	samples, complaints := 0, 0
	var pause time.Duration
	sample := func() {
		before, err := l.advertised(ctx)
		if err != nil {
			return
		}
		published, err := l.published(ctx)
		if err != nil {
			return
		}
		after, err := l.advertised(ctx)
		if err != nil {
			return
		}
		samples++
		for _, minor := range published {
			if slices.Contains(before, minor) && slices.Contains(after, minor) && complaints < 20 {
				complaints++
				t.Errorf("GPU %d is in both APIs: the slices have the GPUs %v, and the kubelet %v before and %v after", minor, published, before, after)
			}
		}
	}
	go func() {
		defer close(done)
		last := time.Now()
		for ctx.Err() == nil {
			was := samples
			if sample(); samples > was {
				now := time.Now()
				pause, last = max(pause, now.Sub(last)), now
			}
			time.Sleep(sampleEvery / 2)
		}
	}()
	return func() {
		cancel()
		<-done
		if samples < 20 {
			t.Errorf("only %d samples were taken", samples)
		}
		t.Logf("no GPU in both APIs: looked at %d times, at most %s apart", samples, ms(pause))
	}
}

// advertised returns the minor numbers of the GPUs that the kubelet lists for any device plugin, in order.
func (l *draLab) advertised(ctx context.Context) ([]uint32, error) {
	all, err := l.healthyIDs(ctx)
	if err != nil {
		return nil, err
	}
	var minors []uint32
	for _, ids := range all {
		for _, id := range ids {
			minor, err := l.minorOf(strings.ToLower(id))
			if err != nil {
				return nil, err
			}
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	return slices.Compact(minors), nil
}

// testDRARefused creates pods of the device plugin in the moment in which its GPUs change to DRA: the scheduler still has the Node's old
// status and binds them. The kubelet must refuse each, and the agent count it; none may run without its GPU.
func testDRARefused(t *testing.T, l *draLab) {
	byPlugin := plainConfig + "gpus:\n- select: {}\n  resourceName: " + wholeResource + "\n"
	l.setConfigs(t, map[string]string{"default": byPlugin})
	l.waitPublished(t)
	l.waitAllocatableOf(t, map[string]int{wholeResource: nodeGPUs})
	before := l.refusedPods(t)
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitKubelet(t, map[string]int{})
	since := time.Now()
	var pods []*corev1.Pod
	t.Cleanup(func() { l.cleanUp(t, pods...) })
	create := func(name, node string) {
		pod := l.onNode(podRequesting(name, wholeResource, 1))
		pod.Spec.NodeName = node
		made, err := l.CreatePod(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, made)
	}
	create("refused-always", l.node.Name()) // No scheduler decides about it.
	for i := range 3 {
		create(fmt.Sprint("refused-", i), "")
	}
	late := l.waitAllocatableOf(t, map[string]int{}).Sub(since)
	create("waits", "")
	l.waitPending(t, pods[len(pods)-1])
	refused := 0
	// One that was bound a moment ago is refused when the kubelet sees it.
	waitUntil(t, 10*time.Second, "each pod is refused or unscheduled", func(ctx context.Context) error {
		refused = 0
		for _, pod := range pods {
			now, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			switch {
			case err != nil:
				return err
			case now.Status.Phase == corev1.PodFailed && now.Status.Reason == admissionFailed:
				refused++
			case now.Status.Phase != corev1.PodPending || now.Spec.NodeName != "":
				return fmt.Errorf("pod %s on node %q is %s (%s: %s)", now.Name, now.Spec.NodeName, now.Status.Phase, now.Status.Reason, now.Status.Message)
			}
		}
		return nil
	})
	if refused == 0 {
		t.Error("the kubelet has refused no pod, want at least the one that was created on the node")
	}
	waitUntil(t, 10*time.Second, fmt.Sprintf("the agent has counted %d refused pods", refused), func(context.Context) error {
		if got := l.refusedPods(t) - before; got != refused {
			return fmt.Errorf("it has counted %d", got)
		}
		return nil
	})
	t.Logf("the Node's status followed %s after the kubelet's list (nodeStatusUpdateFrequency is 2 s here); %d of 5 pods were refused, the others wait", ms(late), refused)
}

// refusedPods returns how many pods of wholeResource the agent has counted as refused.
func (l *draLab) refusedPods(t testing.TB) int {
	t.Helper()
	text, err := l.page(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, n := range parseMetrics(t, text).find("berth_pods_refused_total", map[string]string{"resource": wholeResource}) {
		total += n
	}
	return int(total)
}
