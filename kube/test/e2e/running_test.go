package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// TestRunningContainers checks what the cgroups of a real kubelet and runc show of containers that run, whose first
// thread has ended, and that are gone.
func TestRunningContainers(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	reader := kubelet.NewContainers(kubelet.ContainersDeps{ProcRoot: "/proc"})
	plain := startPod(t, c, workloadPod("plain", "sleep"))
	dead := startPod(t, c, workloadPod("dead-leader", "dead-leader"))

	pid := runningIn(t, reader, plain)[0]
	if state := stateOf(t, pid); state != "S" {
		t.Errorf("process %d of a pod that sleeps is in state %s", pid, state)
	}
	waitUntil(t, 10*time.Second, "the first thread of the container has ended", func(context.Context) error {
		if state := stateOf(t, runningIn(t, reader, dead)[0]); state != "Z" {
			return fmt.Errorf("it is in state %s", state)
		}
		return nil
	})
	zombie := runningIn(t, reader, dead)[0]

	for _, pod := range []*corev1.Pod{plain, dead} {
		if err := c.DeletePodAndWait(timeout(t, 30*time.Second), pod.Namespace, pod.Name, 0); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, 20*time.Second, "the cgroup of the pod that slept is gone", cgroupGone(reader, plain))
	if left, err := reader.LiveIn(string(plain.UID)); err != nil || len(left) > 0 {
		t.Errorf("containers of a pod that is gone: %+v, %v", left, err)
	}
	// runc considers a container whose first thread is a zombie as stopped and does not kill it, so this one continues
	// without its pod, and would hold its GPUs.
	runningIn(t, reader, dead)
	if err := syscall.Kill(zombie, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 20*time.Second, "the cgroup of the other pod is gone", cgroupGone(reader, dead))
}

// cgroupGone reports whether a pod has no cgroup any more.
func cgroupGone(reader *kubelet.Containers, pod *corev1.Pod) func(context.Context) error {
	return func(context.Context) error {
		uids, err := reader.PodUIDs()
		if err == nil && slices.Contains(uids, string(pod.UID)) {
			err = fmt.Errorf("it is among %v", uids)
		}
		return err
	}
}

// runningIn checks that a pod's container runs, and returns its processes.
func runningIn(t *testing.T, reader *kubelet.Containers, pod *corev1.Pod) []int {
	t.Helper()
	running, err := reader.LiveIn(string(pod.UID))
	if err != nil {
		t.Fatal(err)
	}
	for i := range running {
		if strings.HasSuffix(pod.Status.ContainerStatuses[0].ContainerID, "://"+running[i].ID) {
			pids, err := reader.PIDs(&running[i])
			if err != nil || len(pids) == 0 {
				t.Fatalf("processes of pod %s: %v, %v", pod.Name, pids, err)
			}
			return pids
		}
	}
	t.Fatalf("the container of pod %s does not run; the running containers of its pod are %+v", pod.Name, running)
	return nil
}

// stateOf returns the state of a process in /proc.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	blob, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(blob), ") ")
	return rest[:1]
}
