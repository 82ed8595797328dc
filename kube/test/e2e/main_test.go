package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The environment variables:
//
//	BERTH_E2E_DIR      a running sandbox to use and leave as it is
//	BERTH_E2E_PROFILE  the simulated hardware of the sandbox that the tests create (default: a100x8-40g)
//	BERTH_BIN          the directory of the programs (default: kube/bin)
//	BERTH_E2E_LOGS     where the logs of a cluster stay when its test fails; without it only their ends are printed
const (
	envLogs    = "BERTH_E2E_LOGS"
	envDir     = "BERTH_E2E_DIR"
	envProfile = "BERTH_E2E_PROFILE"
	envBin     = "BERTH_BIN"
)

// shared is the sandbox that the tests have in common, created by the first test that needs it. It is set once, here,
// and never changed.
var shared = &sharedCluster{}

type sharedCluster struct {
	once    sync.Once
	dir     string // set if it was created here
	cluster *sandbox.Cluster
	err     error
}

func TestMain(m *testing.M) {
	// For the commands of documents.
	if filepath.Base(os.Args[0]) == "kubectl" {
		kubectl()
		return
	}
	if err := testTurns.runSideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	began := time.Now()
	code := m.Run()
	if shared.cluster != nil && shared.err == nil {
		if err := sharedDenials(shared.cluster, began); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if shared.dir != "" {
		if err := errors.Join(takeDown(shared.dir), os.RemoveAll(shared.dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// profileName returns the simulated hardware of the sandbox that the tests create.
func profileName() string {
	if name := os.Getenv(envProfile); name != "" {
		return name
	}
	return "a100x8-40g"
}

func takeDown(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return sandbox.Down(ctx, dir, os.Stderr)
}

// needMachine skips a test on a machine that cannot run a sandbox.
func needMachine(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short leaves the end-to-end tests out")
	}
	if err := sandbox.CheckMachine(); err != nil {
		t.Skip("skipped: " + err.Error())
	}
	if os.Getenv(envDir) != "" {
		return
	}
	if _, err := os.Stat(filepath.Join(binDir(t), "hyperkube")); err != nil {
		t.Skipf("skipped: the programs of the sandbox are not built: %v; build them with make", err)
	}
}

func binDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(envBin)
	if dir == "" {
		dir = filepath.Join("..", "..", "bin")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// cluster returns the shared sandbox.
func cluster(t testing.TB) *sandbox.Cluster {
	t.Helper()
	testTurns.check(t, true)
	needMachine(t)
	shared.once.Do(func() {
		if dir := os.Getenv(envDir); dir != "" {
			shared.cluster, shared.err = sandbox.Open(dir)
			if shared.err == nil {
				shared.err = shared.cluster.Health(t.Context())
			}
			return
		}
		if shared.dir, shared.err = os.MkdirTemp("", "berth-e2e-"); shared.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		shared.cluster, shared.err = sandbox.Up(ctx, sandbox.Options{
			Dir: shared.dir, Bin: binDir(t), Profile: profileName(), Progress: os.Stderr,
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// ownCluster creates a sandbox for one test, for tests that break it or need other nodes.
func ownCluster(t testing.TB, o sandbox.Options) *sandbox.Cluster {
	t.Helper()
	testTurns.check(t, false)
	needMachine(t)
	dir, err := os.MkdirTemp("", "berth-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Bin, o.Progress = dir, binDir(t), os.Stderr
	began := time.Now()
	t.Cleanup(func() {
		if c, err := sandbox.Open(dir); err == nil {
			checkDenials(t, c, began)
		}
		if t.Failed() {
			dumpLogs(t, dir)
		}
		if err := errors.Join(takeDown(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	c, err := sandbox.Up(timeout(t, 3*time.Minute), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dumpLogs prints the end of each log before they are deleted, and keeps them where envLogs says.
func dumpLogs(t testing.TB, dir string) {
	keep := os.Getenv(envLogs)
	if keep != "" {
		keep = filepath.Join(keep, strings.ReplaceAll(t.Name(), "/", "_"))
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	pods, _ := filepath.Glob(filepath.Join(dir, "nodes", "*", "log", "pods", agentNamespace+"_*", "*", "*.log"))
	paths = append(paths, pods...)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if keep != "" {
			if err := keepLog(filepath.Join(keep, strings.TrimPrefix(path, dir)), data); err != nil {
				t.Log(err)
			}
		}
		lines := strings.Split(string(data), "\n")
		t.Logf("the end of %s:\n%s", strings.TrimPrefix(path, dir), strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

func keepLog(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// workloadPod is a pod of one container that runs the workload program.
func workloadPod(name string, args ...string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Containers:                    []corev1.Container{{Name: "main", Image: sandbox.WorkloadImage, Args: args}},
		},
	}
}

// startPod creates a pod, waits until it runs, and deletes it after the test.
func startPod(t testing.TB, c *sandbox.Cluster, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeletePodAndWait(ctx, pod.Namespace, pod.Name, -1); err != nil {
			t.Error(err)
		}
	})
	return runPod(t, c, pod)
}

// runPod creates a pod and waits until it runs.
func runPod(t testing.TB, c *sandbox.Cluster, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	ctx := timeout(t, time.Minute)
	made, err := c.CreatePod(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	running, err := c.WaitPhase(ctx, made.Namespace, made.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	return running
}

func execIn(t testing.TB, c *sandbox.Cluster, pod *corev1.Pod, args ...string) string {
	t.Helper()
	out, _, err := c.ExecInPod(timeout(t, 30*time.Second), pod.Namespace, pod.Name, "main", append([]string{"/workload"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}
