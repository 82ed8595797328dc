package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// Tests of Berth's output read the node's state by other means than Berth does: the checkpoint with the kubelet's own
// code, OCI specs and the simulator's description as plain JSON. Otherwise a wrong reader would agree with itself.

// theNode returns the shared sandbox's node, with all GPUs free.
func theNode(t testing.TB) *rig {
	t.Helper()
	c := cluster(t)
	if c.State().Profile == "" {
		t.Skip("skipped: the sandbox has no simulated hardware; start it with --profile")
	}
	r := newRig(c)
	r.waitAllocatable(t, nodeGPUs)
	pods, err := c.Client().CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			if wants := container.Resources.Limits[gpuResource]; !wants.IsZero() {
				t.Fatalf("pod %s/%s holds %s GPUs of the node; delete it, these tests need them all", pod.Namespace,
					pod.Name, wants.String())
			}
		}
	}
	return r
}

// assignment is what the kubelet allocated to a container: a decoded entry of its checkpoint.
type assignment struct {
	uuids  []string
	answer *v1beta1.ContainerAllocateResponse
}

// entries returns the entries of the kubelet's checkpoint, read with the kubelet's code.
func entries(blob []byte) ([]checkpoint.PodDevicesEntry, map[string][]string, error) {
	file := checkpoint.New(nil, nil)
	if err := file.UnmarshalCheckpoint(blob); err != nil {
		return nil, nil, err
	}
	if err := file.VerifyChecksum(); err != nil {
		return nil, nil, err
	}
	found, registered := file.GetData()
	return found, registered, nil
}

func (r *rig) checkpointPath() string {
	return filepath.Join(r.node.KubeletDir(), "device-plugins", "kubelet_internal_checkpoint")
}

// assignment reads what the kubelet allocated to the container "main" of a pod.
func (r *rig) assignment(t testing.TB, pod *corev1.Pod) assignment {
	t.Helper()
	blob, err := os.ReadFile(r.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := entries(blob)
	if err != nil {
		t.Fatalf("read checkpoint: %v", err)
	}
	for _, e := range all {
		if e.PodUID != string(pod.UID) || e.ContainerName != "main" || e.ResourceName != gpuResource {
			continue
		}
		answer := &v1beta1.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, answer); err != nil {
			t.Fatalf("decode AllocResp of pod %s: %v", pod.Name, err)
		}
		return assignment{uuids: slices.Sorted(slices.Values(e.DeviceIDs.Devices().UnsortedList())), answer: answer}
	}
	t.Fatalf("the checkpoint has no entry of pod %s (%s):\n%s", pod.Name, pod.UID, blob)
	return assignment{}
}

// hardware describes the simulated machine in a directory.
func hardware(t testing.TB, dir string) sim.Description {
	t.Helper()
	machine, err := sim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	return shown
}

// gpuOf finds a GPU of a machine by its UUID.
func gpuOf(t testing.TB, d sim.Description, uuid string) sim.GPUDescription {
	t.Helper()
	i := slices.IndexFunc(d.GPUs, func(g sim.GPUDescription) bool { return g.UUID == uuid })
	if i < 0 {
		t.Fatalf("the hardware has no GPU %s", uuid)
	}
	return d.GPUs[i]
}

// minorsOf returns the minor numbers of GPUs, ascending.
func minorsOf(t testing.TB, d sim.Description, uuids []string) []uint32 {
	t.Helper()
	var found []uint32
	for _, uuid := range uuids {
		found = append(found, uint32(gpuOf(t, d, uuid).Minor))
	}
	slices.Sort(found)
	return found
}

// bundles is the directory in which the node's containerd keeps the OCI specs.
func (r *rig) bundles() string {
	return filepath.Join(r.node.Root(), "run/containerd/io.containerd.runtime.v2.task/k8s.io")
}

// containerID returns the runtime's ID of a running pod's only container.
func containerID(pod *corev1.Pod) string {
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// mountsIn returns the mount points in a pod's container.
func (r *rig) mountsIn(t testing.TB, pod *corev1.Pod) []string {
	t.Helper()
	const point = 4 // proc(5): ID, parent, device, root, mount point
	var points []string
	for line := range strings.Lines(execIn(t, r.Cluster, pod, "mounts")) {
		if fields := strings.Fields(line); len(fields) > point {
			points = append(points, fields[point])
		}
	}
	return points
}

// envIn returns the environment of a pod's container.
func (r *rig) envIn(t testing.TB, pod *corev1.Pod) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(execIn(t, r.Cluster, pod, "env")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	return env
}

// waitNodeStatus waits until the node's status shows these numbers of GPUs.
func (r *rig) waitNodeStatus(t testing.TB, capacity, allocatable int64) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	waitUntil(t, 15*time.Second, fmt.Sprintf("the node's status shows %d of %d GPUs", allocatable, capacity),
		func(ctx context.Context) error {
			var err error
			if node, err = r.Client().CoreV1().Nodes().Get(ctx, r.node.Name(), metav1.GetOptions{}); err != nil {
				return err
			}
			has, can := node.Status.Capacity[gpuResource], node.Status.Allocatable[gpuResource]
			if has.Value() != capacity || can.Value() != allocatable {
				return fmt.Errorf("capacity is %s, allocatable %s", has.String(), can.String())
			}
			return nil
		})
	return node
}

// agentSockets lists the sockets of device plugins in the kubelet's directory.
func (r *rig) agentSockets(t testing.TB) []string {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(r.node.KubeletDir(), "device-plugins"))
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, entry := range all {
		if entry.Type()&os.ModeSocket != 0 && entry.Name() != "kubelet.sock" {
			own = append(own, entry.Name())
		}
	}
	return own
}

// kubeletLog reads the kubelet's log from an offset on.
func (r *rig) kubeletLog(t testing.TB, from int64) []byte {
	t.Helper()
	blob, err := os.ReadFile(r.node.LogPath("kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	return blob[min(int64(len(blob)), from):]
}

func (r *rig) kubeletLogSize(t testing.TB) int64 {
	t.Helper()
	info, err := os.Stat(r.node.LogPath("kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// waitKubeletLog waits until a line of the kubelet's log contains all the texts, and returns the first such line after
// the offset.
func (r *rig) waitKubeletLog(t testing.TB, from int64, texts ...string) string {
	t.Helper()
	found := ""
	waitUntil(t, 15*time.Second, fmt.Sprintf("the kubelet logs %q", texts), func(context.Context) error {
		for line := range bytes.Lines(r.kubeletLog(t, from)) {
			has := true
			for _, text := range texts {
				has = has && bytes.Contains(line, []byte(text))
			}
			if has {
				found = strings.TrimSpace(string(line))
				return nil
			}
		}
		return fmt.Errorf("no such line since byte %d", from)
	})
	return found
}
