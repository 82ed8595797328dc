package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/berth-gpu/berth/kube/internal/sandbox/command"
)

// TestPendingPodShowsReason checks that, with the real scheduler, berth-sandbox run and berth trace show why a pod
// waits for which no node has enough GPUs.
func TestPendingPodShowsReason(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	file := filepath.Join(t.TempDir(), "pod.yaml")
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: too-many, namespace: default}
spec:
  containers:
  - {name: main, image: berth.dev/workload:sandbox, args: [sleep], resources: {limits: {nvidia.com/gpu: "99"}}}
`
	if err := os.WriteFile(file, []byte(pod), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, time.Minute)
	defer c.DeletePodAndWait(ctx, "default", "too-many", 0)
	condition := regexp.MustCompile(`PodScheduled=False[:,] Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu`)
	event := regexp.MustCompile(`event FailedScheduling: 0/1 nodes are available`)

	out, err := exec.CommandContext(ctx, filepath.Join(binDir(t), "berth-sandbox"), "run", "--dir", c.Dir(),
		"--timeout", "4s", file).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != command.ExitTimeout {
		t.Errorf("run ended with %v, want exit code %d", err, command.ExitTimeout)
	}
	if len(condition.FindAll(out, -1)) != 2 || len(event.FindAll(out, -1)) != 2 {
		t.Errorf("run does not print why the pod waits, once while it waits and once at the end:\n%s", out)
	}

	out, err = exec.CommandContext(ctx, filepath.Join(binDir(t), "berth"), "trace", "too-many", "--kubeconfig",
		c.KubeconfigPath()).CombinedOutput()
	if err != nil || !condition.Match(out) || !event.Match(out) {
		t.Errorf("trace does not print why the pod waits: %v\n%s", err, out)
	}
}
