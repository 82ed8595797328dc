package e2e

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestHostUsers: a container in a user namespace (hostUsers: false) has the GPUs that the kubelet chose, can open them and no other, and
// has the driver's files. It cannot make device nodes, so the runtime binds those of the host. Where the node's runtime has no user
// namespaces, which runc has for pods from 1.2 on, the kubelet refuses the pod and says so, and the GPUs are free again when it is deleted.
func TestHostUsers(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	r.run(t, podWithGPUs("neighbour", 1))
	mapped := podWithGPUs("mapped", 2)
	mapped.Spec.HostUsers = new(false)
	if !r.userNamespaces(t) {
		t.Log("the node's container runtime has no user namespaces: that GPUs work in one is not tested here")
		r.refused(t, mapped)
		return
	}
	r.putDevicesInDev(t)
	pod := r.run(t, mapped)[0]
	if got := strings.Fields(execIn(t, r.Cluster, pod, "cat", "/proc/self/uid_map")); len(got) != 3 || got[1] == "0" {
		t.Fatalf("the container's users are mapped as %v: it is in no user namespace", got)
	}
	uuids := r.assignment(t, pod).uuids
	if len(uuids) != 2 {
		t.Fatalf("the kubelet allocated %v, want 2 GPUs", uuids)
	}
	machine := hardware(t, r.node.SimDir())
	gpus := minorsOf(t, machine, uuids)
	own := map[string]bool{"/dev/nvidiactl": true, "/dev/nvidia-uvm": true}
	for _, minor := range gpus {
		own[fmt.Sprintf("/dev/nvidia%d", minor)] = true
	}
	if got := r.gpusIn(t, pod, "main"); fmt.Sprint(got) != fmt.Sprint(gpus) {
		t.Errorf("the container has the nodes of GPUs %v, want %v", got, gpus)
	}
	for path := range own {
		if got := execIn(t, r.Cluster, pod, "open", path); got != "ENXIO" {
			t.Errorf("open %s: %s, want ENXIO: allowed, and without hardware", path, got)
		}
	}
	r.checkDriver(t, pod, true)
	for i := range machine.GPUs {
		minor := machine.GPUs[i].Minor
		if own[fmt.Sprintf("/dev/nvidia%d", minor)] {
			continue
		}
		argv := []string{"/workload", "mknod", fmt.Sprintf("/tmp/gpu%d", minor), fmt.Sprint(machine.Majors.NVIDIA), fmt.Sprint(minor)}
		if _, _, err := r.ExecInPod(timeout(t, 30*time.Second), pod.Namespace, pod.Name, "main", argv...); err == nil {
			t.Errorf("the container made a node of GPU %d, which it does not hold", minor)
		}
	}
	out := r.inNode(t, 0, "berth", "trace", pod.Name, "--sim", r.node.SimDir(), "--kubeconfig", r.AdminKubeconfigInside())
	if !strings.Contains(out, uuids[0]) || !strings.Contains(out, uuids[1]) {
		t.Errorf("berth trace does not name the GPUs %v:\n%s", uuids, out)
	}
}

// putDevicesInDev puts the device nodes of the simulated machine in the node's /dev until the test ends. runc binds the nodes of the host
// for a container in a user namespace, and an OCI spec has one path for both.
func (r *rig) putDevicesInDev(t testing.TB) {
	t.Helper()
	inside := func(ctx context.Context, script string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		if err := r.node.RunInside(ctx, sandbox.Streams{Out: &out, Err: &out}, append([]string{"sh", "-ec", script, "sh"}, args...)...); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
	}
	dir := t.TempDir()
	inside(t.Context(), `mount -t tmpfs tmpfs "$1"; mkdir "$1/upper" "$1/work"
mount -t overlay -o lowerdir=/dev,upperdir="$1/upper",workdir="$1/work" overlay /dev; cp -a "$2"/. /dev/`, dir, filepath.Join(r.node.SimDir(), "root", "dev"))
	t.Cleanup(func() { inside(context.Background(), `umount --lazy /dev; umount --lazy "$1"`, dir) })
}

// userNamespaces reports whether the default runtime handler of the node has user namespaces, as the kubelet publishes it.
func (r *rig) userNamespaces(t testing.TB) bool {
	t.Helper()
	node, err := r.Client().CoreV1().Nodes().Get(t.Context(), r.node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool {
		return h.Name == "" && h.Features != nil && h.Features.UserNamespaces != nil && *h.Features.UserNamespaces
	})
}

// refused creates a pod that the kubelet does not start, and checks that it says why. Its GPUs are free when it is gone.
func (r *rig) refused(t testing.TB, spec *corev1.Pod) {
	t.Helper()
	pod, err := r.CreatePod(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.cleanUp(t, pod) })
	waitUntil(t, time.Minute, "the kubelet says why the pod does not start", func(ctx context.Context) error {
		events, err := r.Client().CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
		if err != nil {
			return err
		}
		said := []string{}
		for i := range events.Items {
			if said = append(said, events.Items[i].Message); strings.Contains(events.Items[i].Message, "runtime does not support user namespaces") {
				return nil
			}
		}
		return fmt.Errorf("the events are %q", said)
	})
	if err := r.DeletePodAndWait(timeout(t, time.Minute), pod.Namespace, pod.Name, 0); err != nil {
		t.Fatal(err)
	}
	r.run(t, podWithGPUs("rest", nodeGPUs-1))
}
