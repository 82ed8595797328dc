package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// TestFaults breaks GPUs, held and free ones, with and without an event, and repairs them. Each time the kubelet, the
// scheduler, the pod's status and the GPUNode must show it, and the same agent must run throughout.
func TestFaults(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	agent := r.agent(t)
	pod := r.run(t, podWithGPUs("held", 2))[0]
	held := r.assignment(t, pod).uuids
	var free []string
	for _, gpuInfo := range hardware(t, r.node.SimDir()).GPUs {
		if !slices.Contains(held, gpuInfo.UUID) {
			free = append(free, gpuInfo.UUID)
		}
	}
	machine, err := sim.Open(r.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := machine.Clear(sim.ClearAll); err != nil {
			t.Error(err)
		}
		// Later tests need all GPUs, and the test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := poll(ctx, "all GPUs are healthy again", func() error { return r.wantHealthy(ctx, nodeGPUs) }); err != nil {
			t.Error(err)
		}
	})

	xid, silent := sim.Fault{XID: 79, Recovery: "node-reboot"}, sim.Fault{LostSilently: true}
	faults := []gpuFault{
		{"XID 79 on a held GPU", held[0], xid, "NeedsReboot", "XID79"},
		{"XID 79 on a free GPU", free[0], xid, "NeedsReboot", "XID79"},
		{"a held GPU lost without an XID", held[1], silent, "Gone", "GPU_LOST"},
		{"a free GPU lost without an XID", free[1], silent, "Gone", "GPU_LOST"},
	}
	// The limits are far above what is measured on an idle machine: an event is noticed within milliseconds, a GPU that
	// is lost without one at the next scan, which is at most five seconds later.
	r.breakGPUs(t, machine, 2*time.Second, faults[0])
	r.breakGPUs(t, machine, 2*time.Second, faults[1])
	r.breakGPUs(t, machine, 10*time.Second, faults[2:]...)

	// A container keeps its GPU, broken or not: Berth does not end containers.
	gpus := minorsOf(t, hardware(t, r.node.SimDir()), held)
	r.checkUntouched(t, pod, gpus)
	r.waitNodeStatus(t, nodeGPUs, nodeGPUs-int64(len(faults)))
	for _, uuid := range held {
		r.waitPodHealth(t, pod, uuid, corev1.ResourceHealthStatusUnhealthy)
	}
	// The scheduler counts a held GPU that is broken twice: as held and as missing. So it assigns only two of the four
	// that are left.
	rest := r.run(t, podWithGPUs("rest", nodeGPUs-len(faults)-len(held)))[0]
	for _, got := range r.assignment(t, rest).uuids {
		if !slices.Contains(free[2:], got) {
			t.Errorf("a pod beside the broken GPUs got %s, want some of the healthy %v", got, free[2:])
		}
	}

	r.repairGPUs(t, machine, faults[0])
	r.repairGPUs(t, machine, faults[1:]...)
	r.checkUntouched(t, pod, gpus)
	r.waitNodeStatus(t, nodeGPUs, nodeGPUs)
	for _, uuid := range held {
		r.waitPodHealth(t, pod, uuid, corev1.ResourceHealthStatusHealthy)
	}
	if now := r.agents(t); len(now) != 1 || now[0].PID != agent.PID {
		t.Errorf("the agent was %v, and these run: %v; want the same one", agent, now)
	}
}

// gpuFault is a fault of one GPU and the health class that it leads to.
type gpuFault struct {
	name, uuid   string
	fault        sim.Fault
	state, cause string
}

// breakGPUs injects faults, all at once, and waits until kubelet, API and pod status show them.
func (r *rig) breakGPUs(t testing.TB, machine *sim.Machine, limit time.Duration, faults ...gpuFault) {
	t.Helper()
	start := time.Now()
	for _, f := range faults {
		f.fault.GPU = f.uuid
		if err := machine.Inject(f.fault); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range faults {
		took := r.waitKubeletHealth(t, f.uuid, false).Sub(start)
		published := r.waitGPUNodeHealth(t, f.uuid, f.state, f.cause).Sub(start)
		t.Logf("%s: unhealthy for the kubelet after %s, the GPUNode after %s", f.name, ms(took), ms(published))
		if took > limit {
			t.Errorf("%s: unhealthy for the kubelet after %s, want at most %s", f.name, took, limit)
		}
	}
}

// repairGPUs removes the faults, all at once, and waits until kubelet, API and pod status show it.
func (r *rig) repairGPUs(t testing.TB, machine *sim.Machine, faults ...gpuFault) {
	t.Helper()
	start := time.Now()
	for _, f := range faults {
		if err := machine.Clear(f.uuid); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range faults {
		took := r.waitKubeletHealth(t, f.uuid, true).Sub(start)
		published := r.waitGPUNodeHealth(t, f.uuid, "Healthy", "").Sub(start)
		t.Logf("%s, cleared: healthy for the kubelet after %s, the GPUNode after %s", f.name, ms(took), ms(published))
	}
}

func (r *rig) wantHealthy(ctx context.Context, want int) error {
	got, err := r.allocatable(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("the kubelet has %d healthy GPUs", got)
	}
	return err
}

// waitKubeletHealth polls the kubelet every 20 ms until it has a GPU as healthy, or as unhealthy, and returns when that
// was.
func (r *rig) waitKubeletHealth(t testing.TB, uuid string, want bool) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(ctx)
		if err == nil && offered(devices, uuid) == want {
			return time.Now()
		}
		select {
		case <-ctx.Done():
			t.Fatalf("wait until the kubelet calls %s healthy: %v: %v", uuid, want, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// waitGPUNodeHealth waits until the GPUNode has the health class of a GPU, with the cause.
func (r *rig) waitGPUNodeHealth(t testing.TB, uuid, state, cause string) time.Time {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("the GPUNode calls %s %s because of %q", uuid, state, cause), func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		for _, d := range node.Status.Devices {
			if d.UUID != uuid {
				continue
			}
			if d.Health.State == state && (cause == "") == (len(d.Health.Causes) == 0) &&
				(cause == "" || slices.ContainsFunc(d.Health.Causes,
					func(c v1alpha1.Cause) bool { return strings.HasPrefix(c.Code, cause) })) {
				return nil
			}
			return fmt.Errorf("it has %+v", d.Health)
		}
		return errors.New("it does not list it")
	})
	return time.Now()
}

// waitPodHealth waits until the pod's own status has the health of its GPU (KEP-4680).
func (r *rig) waitPodHealth(t testing.TB, pod *corev1.Pod, uuid string, want corev1.ResourceHealthStatus) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("the status of pod %s calls %s %s", pod.Name, uuid, want), func(ctx context.Context) error {
		now, err := r.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, resource := range now.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, d := range resource.Resources {
				if string(d.ResourceID) == uuid && d.Health == want {
					return nil
				}
			}
		}
		return fmt.Errorf("it has %+v", now.Status.ContainerStatuses[0].AllocatedResourcesStatus)
	})
}
