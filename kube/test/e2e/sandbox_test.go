package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

func TestSandboxRunsAPod(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	pod := workloadPod("smoke", "sleep")
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "GREETING", Value: "ahoy"}}
	pod = startPod(t, c, pod)

	if out := execIn(t, c, pod, "env"); !strings.Contains(out, "GREETING=ahoy") {
		t.Errorf("env in the container: want GREETING=ahoy, got:\n%s", out)
	}
	if out := execIn(t, c, pod, "stat", "/dev/null"); out != "char 0666 1:3" {
		t.Errorf("stat /dev/null: want %q, got %q", "char 0666 1:3", out)
	}
	if out := execIn(t, c, pod, "open", "/dev/null"); out != "OK" {
		t.Errorf("open /dev/null: want OK, got %q", out)
	}
	// The device cgroup is real: the container can create a device node, but not open it.
	execIn(t, c, pod, "mknod", "/tmp/kmsg", "1", "11")
	if out := execIn(t, c, pod, "open", "/tmp/kmsg"); out != "EPERM" {
		t.Errorf("open a self-made /dev/kmsg: want EPERM, got %q", out)
	}
	if out := execIn(t, c, pod, "devices"); out != "[]" {
		t.Errorf("devices of a pod without GPUs: want [], got %s", out)
	}
}

func TestSandboxReportsHowAPodEnded(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	ctx := timeout(t, time.Minute)
	if _, err := c.CreatePod(ctx, workloadPod("fails", "exit", "7")); err != nil {
		t.Fatal(err)
	}
	defer c.DeletePodAndWait(ctx, "default", "fails", 0)
	pod, err := c.WaitPhase(ctx, "default", "fails", corev1.PodSucceeded)
	if err == nil || !strings.Contains(err.Error(), "exit code 7") {
		t.Fatalf("wait for a pod that fails: want an error with its exit code, got %v (%v)", err, pod)
	}
}

// TestSandboxServesPodsTheAPI sends requests to the API server from a pod of the pod network and from one in the node's
// network, as every in-cluster client does.
func TestSandboxServesPodsTheAPI(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	for name, hostNetwork := range map[string]bool{"pod-network": false, "host-network": true} {
		t.Run(name, func(t *testing.T) {
			pod := workloadPod("client-"+name, "sleep")
			pod.Spec.HostNetwork = hostNetwork
			pod = startPod(t, c, pod)
			if out := execIn(t, c, pod, "api", "/version"); !strings.Contains(out, `"gitVersion"`) {
				t.Errorf("request the version: got %s", out)
			}
			// The account is known and has no permissions: authentication and RBAC are real.
			out := execIn(t, c, pod, "api", "/api/v1/nodes")
			if !strings.Contains(out, "403") || !strings.Contains(out, "system:serviceaccount:default:default") {
				t.Errorf("list the nodes: want a refusal that names the account, got %s", out)
			}
		})
	}
}

func TestSandboxKubeletRestart(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	n := c.Nodes()[0]
	pod := startPod(t, c, workloadPod("survivor", "sleep"))
	before := pod.Status.ContainerStatuses[0].ContainerID
	start := time.Now()
	if err := n.RestartKubelet(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Logf("kubelet restarted in %s", time.Since(start).Round(time.Millisecond))
	startPod(t, c, workloadPod("after-restart", "sleep"))
	pod, err := c.WaitPhase(timeout(t, 10*time.Second), pod.Namespace, pod.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if now := pod.Status.ContainerStatuses[0].ContainerID; now != before {
		t.Errorf("the container was replaced: %s before, %s after the restart of kubelet", before, now)
	}
}

func TestSandboxNodeIsSeenFromOutside(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	n := c.Nodes()[0]
	for _, path := range []string{
		filepath.Join(n.KubeletDir(), "device-plugins", "kubelet.sock"),
		filepath.Join(n.Root(), "var/lib/kubelet/device-plugins/kubelet.sock"),
	} {
		if st, err := os.Stat(path); err != nil || st.Mode()&os.ModeSocket == 0 {
			t.Errorf("%s: want kubelet's registration socket, got %v, %v", path, st, err)
		}
	}
	mark := filepath.Join(n.CDIDir(), "mark")
	if err := os.WriteFile(mark, []byte("from outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(mark)
	out, err := n.Exec(timeout(t, 10*time.Second), "cat", "/var/run/cdi/mark")
	if err != nil || string(out) != "from outside" {
		t.Errorf("read in the node what was written outside: %q, %v", out, err)
	}
	if _, err := os.Stat("/var/run/cdi/mark"); err == nil {
		t.Error("a file of the node is seen on the host")
	}
}

func TestSandboxTakesAnImage(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	img, err := image.Make("berth.dev/probe:test", image.Spec{
		Entrypoint: []string{"/usr/bin/probe"}, Env: []string{"FROM=image"},
		Files: map[string]string{"/usr/bin/probe": filepath.Join(c.State().Bin, "workload")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ImportImage(timeout(t, time.Minute), img); err != nil {
		t.Fatal(err)
	}
	pod := workloadPod("own-image", "env")
	pod.Spec.Containers[0].Image = "berth.dev/probe:test"
	ctx := timeout(t, time.Minute)
	if _, err := c.CreatePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	defer c.DeletePodAndWait(ctx, "default", "own-image", 0)
	if _, err := c.WaitPhase(ctx, "default", "own-image", corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	if out, err := c.PodLogs(ctx, "default", "own-image", "main"); err != nil || !strings.Contains(out, "FROM=image") {
		t.Errorf("logs of the pod: want FROM=image, got %q, %v", out, err)
	}
}

// TestSandboxLeavesNothing takes down a sandbox that has a pod and a hollow node, and whose kubelet has crashed.
func TestSandboxLeavesNothing(t *testing.T) {
	onOwnCluster(t, 2)
	c := ownCluster(t, sandbox.Options{Nodes: 1, Hollow: 1})
	ctx := timeout(t, 2*time.Minute)
	runPod(t, c, workloadPod("left", "sleep"))
	hollow, err := c.Node("hollow-0")
	if err != nil {
		t.Fatal(err)
	}
	onHollow := workloadPod("recorded", "sleep")
	onHollow.Spec.NodeName = hollow.Name()
	runPod(t, c, onHollow)
	created, err := hollow.CreatedContainers()
	if err != nil || len(created) != 1 || created[0].Config.Metadata.Name != "main" {
		t.Errorf("containers recorded by the hollow node: want one named main, got %v, %v", created, err)
	}
	for _, p := range c.State().Processes {
		if p.Name == "kubelet" {
			if err := p.Stop(ctx, syscall.SIGKILL, time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Health(ctx); err == nil {
		t.Error("a sandbox whose kubelets have ended reports that it is healthy")
	}
	// Like an up that was interrupted before it recorded its processes: only cgroup, namespaces and names remain to
	// find them.
	path := filepath.Join(c.Dir(), "state.json")
	var state map[string]any
	data, err := os.ReadFile(path)
	if err = errors.Join(err, json.Unmarshal(data, &state)); err != nil {
		t.Fatal(err)
	}
	state["processes"], state["phase"] = nil, "starting"
	if data, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sandbox.Down(ctx, c.Dir(), nil); err != nil {
		t.Fatal(err)
	}
	left, err := sandbox.FindLeftovers(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if !left.Empty() {
		t.Errorf("after down there is still: %s", left)
	}
}
