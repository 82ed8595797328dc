package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// labelDriver is the Node's label with the version of the driver.
const labelDriver = "nvidia.com/cuda.driver-version.full"

// testDriverUpgraded replaces the driver's files while the agent runs, with an older version and then with the first one
// again. The agent ends once for each file, its container is started again with the new library, and the node has the
// same GPUs as before. Pods keep theirs.
func testDriverUpgraded(t *testing.T, r *rig) {
	held := r.run(t, podWithGPUs("held", 2))[0]
	before := r.gpusIn(t, held, "main")
	machine, err := sim.Open(r.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	files, err := sim.FindFiles(r.State().Bin)
	if err != nil {
		t.Fatal(err)
	}
	devices := r.deviceIDs(t)
	for i, version := range []string{sim.Drivers()[1], hardware(t, r.node.SimDir()).Driver} {
		watch := r.sample(t)
		at := time.Now()
		if err := machine.UpgradeDriver(version, files); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, time.Minute, "the agent runs with driver "+version, func(ctx context.Context) error {
			return r.runsDriver(ctx, version, int32(i+1))
		})
		r.waitAllocatable(t, nodeGPUs)
		back := time.Now()
		gap, _, lowest := gaps(watch.stop())
		t.Logf("driver upgraded to %s: %d healthy GPUs and the label %s after it; in between %d at the lowest, and fewer than all for %s",
			version, nodeGPUs, ms(back.Sub(at)), lowest, ms(gap))
		if now := r.deviceIDs(t); !slices.Equal(now, devices) {
			t.Errorf("driver %s: the kubelet has the devices %q, want %q", version, now, devices)
		}
		r.checkUntouched(t, held, before)
		next := r.run(t, podWithGPUs(fmt.Sprintf("next-%d", i), 1))[0]
		checkOnce(t, map[string][]uint32{"held": before, "next": r.gpusIn(t, next, "main")})
	}
}

// runsDriver returns an error unless the agent's container is ready after this number of restarts, the last of them
// since it had ended with an error, and the Node's label has the version.
func (r *rig) runsDriver(ctx context.Context, version string, restarts int32) error {
	node, err := r.Client().CoreV1().Nodes().Get(ctx, r.node.Name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	pods, err := r.node.AgentPods(ctx)
	if err != nil {
		return err
	}
	if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
		return fmt.Errorf("there are %d agents", len(pods))
	}
	status := pods[0].Status.ContainerStatuses[0]
	ended := corev1.ContainerStateTerminated{}
	if last := status.LastTerminationState.Terminated; last != nil {
		ended = *last
	}
	if label := node.Labels[labelDriver]; label != version || !status.Ready || status.RestartCount != restarts || ended.ExitCode == 0 {
		return fmt.Errorf("the label is %s; the agent's container is ready: %v, restarts %d, and it ended with %d; want %d restarts",
			label, status.Ready, status.RestartCount, ended.ExitCode, restarts)
	}
	return nil
}

// deviceIDs returns the healthy GPUs of the kubelet, sorted.
func (r *rig) deviceIDs(t testing.TB) []string {
	t.Helper()
	devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range devices {
		if d.Resource == gpuResource {
			ids = append(ids, d.IDs...)
		}
	}
	slices.Sort(ids)
	return ids
}
