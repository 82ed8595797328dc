package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestHostUsers: a container in a user namespace (hostUsers: false) has the GPUs that the kubelet chose, can open them and no other, and has
// the driver's files. It cannot make device nodes, so the runtime binds those of the host.
func TestHostUsers(t *testing.T) {
	r := theNode(t)
	r.run(t, podWithGPUs("neighbour", 1))
	mapped := podWithGPUs("mapped", 2)
	mapped.Spec.HostUsers = new(false)
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
