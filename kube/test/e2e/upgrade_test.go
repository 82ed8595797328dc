package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sampleEvery is how often the kubelet's healthy GPUs are sampled.
const sampleEvery = 20 * time.Millisecond

// sample is one answer; count is -1 when the kubelet gave none.
type sample struct {
	at    time.Time
	count int
}

// sampler polls the kubelet until it is stopped.
type sampler struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	samples []sample
}

func (r *rig) sample(t testing.TB) *sampler {
	ctx, cancel := context.WithCancel(t.Context())
	s := &sampler{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			count, err := r.allocatable(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				count = -1
			}
			s.mu.Lock()
			s.samples = append(s.samples, sample{time.Now(), count})
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *sampler) stop() []sample {
	s.cancel()
	<-s.done
	return s.samples
}

// waitFor waits until this count was sampled.
func (s *sampler) waitFor(t testing.TB, count int) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the kubelet has %d healthy GPUs", count), func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, seen := firstAfter(s.samples, time.Time{}, count); !seen && len(s.samples) > 0 {
			return fmt.Errorf("it has %d", s.samples[len(s.samples)-1].count)
		} else if !seen {
			return errors.New("no sample was taken yet")
		}
		return nil
	})
}

// firstAfter returns when the first sample after start had this count.
func firstAfter(samples []sample, start time.Time, count int) (time.Time, bool) {
	i := slices.IndexFunc(samples, func(s sample) bool { return s.at.After(start) && s.count == count })
	if i < 0 {
		return time.Time{}, false
	}
	return samples[i].at, true
}

// gaps returns how long, in total, the count was below the full one, the longest pause between two samples, which
// bounds what was missed, and the lowest count.
func gaps(samples []sample) (gap, pause time.Duration, lowest int) {
	lowest = nodeGPUs
	for i := 1; i < len(samples); i++ {
		between := samples[i].at.Sub(samples[i-1].at)
		pause = max(pause, between)
		if samples[i].count != nodeGPUs {
			gap += between
		}
		lowest = min(lowest, samples[i].count)
	}
	return gap, pause, lowest
}

// testAgentKilled checks that a container keeps its GPUs without the agent, that no container gets new ones, and that
// everything is as before when the agent is back.
func testAgentKilled(t *testing.T, r *rig) {
	held := r.run(t, podWithGPUs("held", 2))[0]
	before := r.gpusIn(t, held, "main")
	watch := r.sample(t)

	killed := time.Now()
	if err := r.mode.Kill(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, 0)
	r.checkUntouched(t, held, before)
	// The scheduler reads the node's status, which the kubelet writes a little later.
	r.waitNodeStatus(t, nodeGPUs, 0)
	late := podWithGPUs("late", 1)
	t.Cleanup(func() { r.cleanUp(t, late) })
	if _, err := r.CreatePod(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	r.waitUnschedulable(t, late)

	started := time.Now()
	if err := r.mode.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	late, err := r.WaitPhase(timeout(t, 30*time.Second), late.Namespace, late.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	r.checkUntouched(t, held, before)
	checkOnce(t, map[string][]uint32{"held": before, "late": r.gpusIn(t, late, "main")})

	samples := watch.stop()
	gone, seen := firstAfter(samples, killed, 0)
	back, ok := firstAfter(samples, started, nodeGPUs)
	if !seen || !ok {
		t.Fatalf("healthy GPUs went to 0: %v, and back to %d: %v", seen, nodeGPUs, ok)
	}
	gap, _, _ := gaps(samples)
	t.Logf("agent as %s killed: 0 healthy GPUs after %s; %d again %s after the start; the gap is %s, and the agent "+
		"did not run for %s of it",
		r.mode.Name(), ms(gone.Sub(killed)), nodeGPUs, ms(back.Sub(started)), ms(gap), ms(started.Sub(killed)))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// checkUntouched checks that a running container is the same one with the same GPUs, and can still open them: without a
// driver behind the node that fails with ENXIO, while the device cgroup would refuse with EPERM.
func (r *rig) checkUntouched(t testing.TB, pod *corev1.Pod, gpus []uint32) {
	t.Helper()
	now, err := r.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("pod %s: it is %s, and its container was %s and is %s", pod.Name, now.Status.Phase,
			pod.Status.ContainerStatuses[0].ContainerID, now.Status.ContainerStatuses[0].ContainerID)
	}
	if got := r.gpusIn(t, pod, "main"); !slices.Equal(got, gpus) {
		t.Errorf("pod %s had the GPUs %v and has %v", pod.Name, gpus, got)
	}
	for _, minor := range gpus {
		if got := execIn(t, r.Cluster, pod, "open", fmt.Sprintf("/dev/nvidia%d", minor)); got != "ENXIO" {
			t.Errorf("pod %s opens /dev/nvidia%d: %s, want ENXIO", pod.Name, minor, got)
		}
	}
}

// waitUnschedulable waits until the scheduler has reported that no node fits the pod.
func (r *rig) waitUnschedulable(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	waitUntil(t, 15*time.Second, "pod "+pod.Name+" is unschedulable", func(ctx context.Context) error {
		now, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && now.Status.Phase == corev1.PodPending {
				return nil
			}
		}
		return fmt.Errorf("it is %s on node %q: %+v", now.Status.Phase, now.Spec.NodeName, now.Status.Conditions)
	})
}

// testAgentUpgraded starts a new agent beside the old one, then stops the old one: at no moment does the kubelet have
// fewer GPUs, and every new pod gets its GPUs.
func testAgentUpgraded(t *testing.T, r *rig) {
	held := r.run(t, podWithGPUs("held", 2))[0]
	before := r.gpusIn(t, held, "main")
	watch := r.sample(t)
	admit := r.admitPods(t, nodeGPUs-2)
	waitUntil(t, 30*time.Second, "the first pods were admitted", func(context.Context) error {
		if !admit.broken() && admit.count() < 2 {
			return fmt.Errorf("%d were", admit.count())
		}
		return nil
	})

	start := time.Now()
	if err := r.mode.Upgrade(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	took, during := time.Since(start), admit.count()
	// The end of the old agent can reach the kubelet late, and the new one sends its list again two seconds after the
	// old one has ended.
	over := time.Now()
	waitUntil(t, 30*time.Second, "pods were admitted for 2.5 s after the upgrade", func(context.Context) error {
		if admit.broken() || time.Since(over) > 2500*time.Millisecond && admit.count() > during+1 {
			return nil
		}
		return fmt.Errorf("%d were", admit.count()-during)
	})
	admit.stop(t)
	samples := watch.stop()

	r.checkUntouched(t, held, before)
	gap, pause, lowest := gaps(samples)
	t.Logf("agent as %s upgraded in %s: gap %s, lowest number of healthy GPUs %d in %d samples, at most %s apart; "+
		"%d pods admitted, %d of them before the old agent had ended",
		r.mode.Name(), ms(took), ms(gap), lowest, len(samples), ms(pause), admit.count(), during)
	if lowest != nodeGPUs {
		for i, s := range samples {
			if s.count != nodeGPUs {
				t.Errorf("sample %d, %s after the upgrade began: %d healthy GPUs, want %d", i, ms(s.at.Sub(start)), s.count, nodeGPUs)
			}
		}
	}
}

// admission keeps creating pods with one GPU that check their devices and end.
type admission struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
	done   atomic.Int64

	mu     sync.Mutex
	failed []error
}

// admitPods starts workers, each of which runs pods with one GPU, one at a time.
func (r *rig) admitPods(t testing.TB, workers int) *admission {
	ctx, cancel := context.WithCancel(t.Context())
	a := &admission{cancel: cancel}
	for worker := range workers {
		a.group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				// Not cancelled early: a pod that was created is also removed.
				if err := r.admitOne(fmt.Sprintf("admitted-%d-%d", worker, i)); err != nil {
					a.mu.Lock()
					a.failed = append(a.failed, err)
					a.mu.Unlock()
					return
				}
				a.done.Add(1)
			}
		})
	}
	t.Cleanup(func() { a.cancel(); a.group.Wait() })
	return a
}

func (r *rig) admitOne(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pod := podWithGPUs(name, 1, "devices")
	if _, err := r.CreatePod(ctx, pod); err != nil {
		return err
	}
	_, err := r.WaitPhase(ctx, pod.Namespace, name, corev1.PodSucceeded)
	none := int64(0)
	gone := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &none})
	return errors.Join(err, gone)
}

func (a *admission) count() int { return int(a.done.Load()) }

// broken reports whether a pod was not admitted; stop returns which.
func (a *admission) broken() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.failed) > 0
}

func (a *admission) stop(t testing.TB) {
	t.Helper()
	a.cancel()
	a.group.Wait()
	for _, err := range a.failed {
		t.Errorf("a pod that fits was not admitted: %v", err)
	}
}
