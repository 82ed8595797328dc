package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/workload"
)

// podWithGPUs is a pod whose one container requests GPUs and, without a command, sleeps.
func podWithGPUs(name string, gpus int, args ...string) *corev1.Pod {
	return podWith(name, gpuResource, int64(gpus), args...)
}

func requestGPUs(c *corev1.Container, gpus int) {
	c.Resources.Limits = corev1.ResourceList{gpuResource: *resource.NewQuantity(int64(gpus), resource.DecimalSI)}
}

// run creates pods, all at once, waits until they run, and deletes them after the test.
func (r *rig) run(t testing.TB, pods ...*corev1.Pod) []*corev1.Pod {
	t.Helper()
	t.Cleanup(func() { r.cleanUp(t, pods...) })
	running := make([]*corev1.Pod, len(pods))
	group, ctx := errgroup.WithContext(timeout(t, 30*time.Second))
	for i, pod := range pods {
		group.Go(func() error {
			if _, err := r.CreatePod(ctx, pod); err != nil {
				return err
			}
			var err error
			running[i], err = r.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodRunning)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return running
}

// cleanUp is remove for the end of a test.
func (r *rig) cleanUp(t testing.TB, pods ...*corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.remove(ctx, pods...); err != nil {
		t.Error(err)
	}
}

// remove deletes pods, all at once, and waits until they are gone.
func (r *rig) remove(ctx context.Context, pods ...*corev1.Pod) error {
	var group errgroup.Group
	for _, pod := range pods {
		group.Go(func() error { return r.DeletePodAndWait(ctx, pod.Namespace, pod.Name, -1) })
	}
	return group.Wait()
}

// gpuNode is the path of a GPU's own device node.
var gpuNode = regexp.MustCompile(`^/dev/nvidia([0-9]+)$`)

// minors returns the minor numbers of the GPUs whose nodes are in a listing of the workload program, ascending.
func minors(t testing.TB, listing string) []uint32 {
	t.Helper()
	var devices []workload.Device
	if err := json.Unmarshal([]byte(listing), &devices); err != nil {
		t.Fatalf("read the listing of devices: %v: %s", err, listing)
	}
	var found []uint32
	for _, d := range devices {
		if match := gpuNode.FindStringSubmatch(d.Path); match != nil {
			if match[1] != strconv.Itoa(int(d.Minor)) {
				t.Errorf("%s has the minor number %d", d.Path, d.Minor)
			}
			found = append(found, d.Minor)
		}
	}
	slices.Sort(found)
	return found
}

// gpusIn returns the GPUs of a running container, by minor number. It retries, because a kubelet that has just started
// refuses until it has seen its pods.
func (r *rig) gpusIn(t testing.TB, pod *corev1.Pod, container string) []uint32 {
	t.Helper()
	out := ""
	waitUntil(t, 20*time.Second, "pod "+pod.Name+" lists its devices", func(ctx context.Context) error {
		var err error
		out, _, err = r.ExecInPod(ctx, pod.Namespace, pod.Name, container, "/workload", "devices")
		return err
	})
	return minors(t, out)
}

// held returns the GPUs of the container "main" of each pod, by the pod's name.
func (r *rig) held(t testing.TB, pods ...*corev1.Pod) map[string][]uint32 {
	t.Helper()
	all := map[string][]uint32{}
	for _, pod := range pods {
		got := r.gpusIn(t, pod, "main")
		want := pod.Spec.Containers[0].Resources.Limits[gpuResource]
		if len(got) != int(want.Value()) {
			t.Errorf("pod %s has the GPUs %v, want %d", pod.Name, got, want.Value())
		}
		all[pod.Name] = got
	}
	return all
}

// checkOnce fails the test for each GPU that has two holders.
func checkOnce(t testing.TB, held map[string][]uint32) {
	t.Helper()
	owner := map[uint32]string{}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		for _, minor := range held[name] {
			if other, taken := owner[minor]; taken {
				t.Errorf("GPU %d was allocated twice: to %s and to %s", minor, other, name)
			}
			owner[minor] = name
		}
	}
}

// checkFull fails the test unless every GPU of the node has exactly one holder.
func checkFull(t testing.TB, held map[string][]uint32) {
	t.Helper()
	checkOnce(t, held)
	total := 0
	for _, list := range held {
		total += len(list)
	}
	if total != nodeGPUs {
		t.Errorf("%d GPUs are held, want all %d: %v", total, nodeGPUs, held)
	}
}

// pollEvery is the pause between two checks of poll. Shorter ones took a fifth of the CPU time of all tests.
const pollEvery = 150 * time.Millisecond

// poll calls check, with a pause in between, until it returns nil; when ctx ends, the error wraps the last one of check.
func poll(ctx context.Context, what string, check func() error) error {
	var last error
	for {
		err := check()
		if err == nil {
			return nil
		}
		// The error of a check that was cancelled has no information.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, ctx.Err(), last)
		case <-time.After(pollEvery):
		}
	}
}

// checkGPUNode checks that the node's object in the API is the agent's own, belongs to the node, and has no problems.
func (r *rig) checkGPUNode(t testing.TB) {
	t.Helper()
	owner, err := r.Client().CoreV1().Nodes().Get(t.Context(), r.node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 15*time.Second, "the GPUNode is in order", func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		if owners := node.OwnerReferences; len(owners) != 1 || owners[0].UID != owner.UID {
			return fmt.Errorf("its owners are %v", owners)
		}
		if len(node.Status.Devices) != nodeGPUs || len(node.Status.Problems) > 0 {
			return fmt.Errorf("it has %d devices and the problems %v", len(node.Status.Devices), node.Status.Problems)
		}
		return nil
	})
}

// testGivesDevices checks that a pod that requests two GPUs has these two and no other: device nodes, driver files, and
// what the kernel allows it to open.
func testGivesDevices(t *testing.T, r *rig) {
	pod := r.run(t, podWithGPUs("two", 2))[0]
	gpus := r.gpusIn(t, pod, "main")
	if len(gpus) != 2 {
		t.Fatalf("the container has the GPUs %v, want 2", gpus)
	}
	r.checkUntouched(t, pod, gpus)
	r.checkTrace(t, pod, gpus)
	r.checkGPUNode(t)
	for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		if got := execIn(t, r.Cluster, pod, "stat", path); !strings.HasPrefix(got, "char ") {
			t.Errorf("stat %s: %s, want a character device", path, got)
		}
	}
	if mounts := execIn(t, r.Cluster, pod, "mounts"); !strings.Contains(mounts, "libcuda.so.") {
		t.Errorf("the driver's libraries are not mounted:\n%s", mounts)
	}
	third := uint32(0)
	for slices.Contains(gpus, third) {
		third++
	}
	own := execIn(t, r.Cluster, pod, "stat", fmt.Sprintf("/dev/nvidia%d", gpus[0]))
	major, _, _ := strings.Cut(own[strings.LastIndexByte(own, ' ')+1:], ":")
	execIn(t, r.Cluster, pod, "mknod", "/tmp/third", major, fmt.Sprint(third))
	if got := execIn(t, r.Cluster, pod, "open", "/tmp/third"); got != "EPERM" {
		t.Errorf("open a node made for GPU %d, which the pod does not hold: %s, want EPERM", third, got)
	}
}

// processesOf returns the processes of a container, given its name in the pod's status.
func processesOf(id string) ([]kubelet.Process, error) {
	containers := kubelet.NewContainers(kubelet.ContainersDeps{ProcRoot: "/proc"})
	running, err := containers.Live()
	if err != nil {
		return nil, err
	}
	var found []kubelet.Process
	for i := range running {
		if !strings.HasSuffix(id, "://"+running[i].ID) {
			continue
		}
		pids, err := containers.PIDs(&running[i])
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			process, err := kubelet.ProcessOf("/proc", pid)
			if err == nil {
				found = append(found, process)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	return found, nil
}

func signalAll(processes []kubelet.Process, sig syscall.Signal) error {
	for _, p := range processes {
		if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", p.PID, err)
		}
	}
	return nil
}
