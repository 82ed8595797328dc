package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// mpsGPU is the GPU that the MPS tests share as mpsReplicas replicas; mpsMiB and mpsThreads are the limits of each
	// client process, of 81920 MiB and 100 %.
	mpsGPU, mpsReplicas = 2, 3
	mpsMiB, mpsThreads  = 27306, 33
	mpsRule             = `
gpus:
- select: {index: [2]}
  sharing: {mode: mps, replicas: 3, renameByDefault: true}
`
	exclusiveProcess = "EXCLUSIVE_PROCESS"
)

// mpsRig is a node with a GPU that is shared by MPS.
type mpsRig struct {
	*sharingRig
	uuid string
}

// dir is the directory of the GPU's daemon, as the machine sees it.
func (m *mpsRig) dir(name string) string {
	return filepath.Join(m.node.Root(), "run/berth/mps", m.uuid, name)
}

// daemon reads the process of the GPU's control daemon from the file that the daemon writes.
func (m *mpsRig) daemon() (int, error) {
	text, err := os.ReadFile(filepath.Join(m.dir("pipe"), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = m.isDaemon(pid)
	}
	return pid, err
}

// isDaemon returns an error unless a process is this GPU's daemon, and not that of another sandbox.
func (m *mpsRig) isDaemon(pid int) error {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return err
	}
	words, err := mpsControlOf(m.node, pid)
	if err != nil {
		return err
	}
	settings := strings.Split(string(env), "\x00")
	switch {
	case words == nil:
		return fmt.Errorf("process %d is not an MPS control daemon of this node's driver", pid)
	case !slices.Contains(settings, "CUDA_VISIBLE_DEVICES="+m.uuid):
		return fmt.Errorf("process %d does not see %s alone: %q", pid, m.uuid, settings)
	}
	return nil
}

// mpsControlOf returns the arguments of a process that is nvidia-cuda-mps-control of the node's driver, which runs with the driver
// root as its root; nil for another program.
func mpsControlOf(node sandbox.Node, pid int) ([]string, error) {
	argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	words := strings.Split(string(bytes.TrimRight(argv, "\x00")), "\x00")
	if filepath.Base(words[0]) != "nvidia-cuda-mps-control" {
		return nil, nil
	}
	root, err := os.Stat(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return nil, err
	}
	driver, err := os.Stat(filepath.Join(node.SimDir(), "root"))
	if err != nil || !os.SameFile(root, driver) {
		return nil, err
	}
	return words, nil
}

func (m *mpsRig) mustDaemon(t testing.TB) int {
	t.Helper()
	pid, err := m.daemon()
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// computeMode returns the compute mode of the GPU.
func (m *mpsRig) computeMode(t testing.TB) string {
	t.Helper()
	return gpuOf(t, m.machine(t), m.uuid).ComputeMode
}

// testMPS shares one GPU by MPS: it starts on a node without a supervisor, runs clients, kills agent and daemon, and
// ends with a GPU that is not shared.
func testMPS(t *testing.T, s *sharingRig) {
	m := &mpsRig{sharingRig: s, uuid: s.machine(t).GPUs[mpsGPU].UUID}
	m.configure(t, mpsRule)
	// No daemon can serve a client yet.
	m.waitOffers(t, offers{gpuResource: 7})
	m.waitProblem(t, "MPS_SUPERVISOR")
	if err := m.node.StartMPS(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.waitOffers(t, offers{gpuResource: 7, sharedResource: mpsReplicas})
	if got := m.computeMode(t); got != exclusiveProcess {
		t.Errorf("the compute mode is %q, want %s", got, exclusiveProcess)
	}
	m.waitDevice(t, m.uuid, "how it is shared", advertisedAs(v1alpha1.DeviceOffer{
		Resource: sharedResource, Sharing: "mps", Replicas: mpsReplicas, RefusesMany: true,
		ClaimMPSLimits: v1alpha1.ClaimMPSLimits{PinnedMemoryMiB: mpsMiB, ActiveThreadPercentage: mpsThreads},
	}))
	m.checkRefused(t, podWith("greedy", sharedResource, 2), "maximum request size for shared resources is 1")

	another := mpsClient("client-b")
	user := int64(1000)
	another.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
	clients := m.run(t, mpsClient("client-a"), another)
	for i, pod := range clients {
		m.checkClient(t, pod)
		m.checkShown(t, pod, shown{
			index: "2", replica: m.replicaOf(t, pod, mpsReplicas),
			sharing: "MPS: enforced per client process: 27306 MiB pinned memory, 33 % threads",
			column:  "MPS x3, 2 held", with: clients[1-i : 2-i],
		})
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *mpsRig, []*corev1.Pod)
	}{
		{"AgentKilled", testMPSAgentKilled},
		{"AgentUpgraded", testMPSAgentUpgraded},
		{"DaemonKilled", testMPSDaemonKilled},
		{"Ended", testMPSEnded},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, m, clients) }) {
			t.FailNow()
		}
	}
}

// waitProblem waits until the GPUNode has a problem.
func (r *rig) waitProblem(t testing.TB, code string) {
	t.Helper()
	waitUntil(t, 15*time.Second, "the GPUNode has the problem "+code, func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Status.Problems, func(c v1alpha1.Cause) bool { return c.Code == code }) {
			return fmt.Errorf("it has %v", node.Status.Problems)
		}
		return nil
	})
}

// mpsClient is a pod that is a client of MPS as long as it runs.
func mpsClient(name string) *corev1.Pod { return podWith(name, sharedResource, 1, "mps") }

// granted is what a client prints once the daemon has accepted it.
func (m *mpsRig) granted() string {
	return fmt.Sprintf("device 0 %s\npinned_mem_limit 0 %dM\nactive_thread_percentage %d.0\nready\n", m.uuid, mpsMiB, mpsThreads)
}

// checkClient checks what a client has: the GPU, the daemon's directory and memory, and the limits.
func (m *mpsRig) checkClient(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	if got := uuidOf(m.idsOf(t, pod)[0]); got != m.uuid {
		t.Errorf("pod %s got %s, want a replica of %s", pod.Name, got, m.uuid)
	}
	if got := m.gpusIn(t, pod, "main"); !slices.Equal(got, minorsOf(t, m.machine(t), []string{m.uuid})) {
		t.Errorf("pod %s has the nodes of GPUs %v", pod.Name, got)
	}
	pipe := "/mps/" + m.uuid + "/pipe"
	if got := m.envIn(t, pod)["CUDA_MPS_PIPE_DIRECTORY"]; got != pipe {
		t.Errorf("CUDA_MPS_PIPE_DIRECTORY of pod %s is %q, want %q", pod.Name, got, pipe)
	}
	for path, want := range map[string]string{pipe: m.dir("pipe"), "/dev/shm": m.dir("shm")} {
		if err := sameFile(inside(t, pod, path), want); err != nil {
			t.Errorf("%s of pod %s: %v", path, pod.Name, err)
		}
	}
	// The memory is shared with the daemon of this GPU only: it is a file system of its own.
	if err := sameFile(fmt.Sprintf("/proc/%d/root/dev/shm", m.mustDaemon(t)), m.dir("shm")); err != nil {
		t.Errorf("/dev/shm of the daemon: %v", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir("shm"), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s is not a tmpfs: type %x, %v", m.dir("shm"), fs.Type, err)
	}
	if err := sameFileSystem(m.dir("shm"), m.dir("")); err == nil {
		t.Errorf("%s is a part of the file system around it", m.dir("shm"))
	}
	waitUntil(t, 15*time.Second, "pod "+pod.Name+" is accepted by the daemon", func(ctx context.Context) error {
		log, err := m.PodLogs(ctx, pod.Namespace, pod.Name, "main")
		if err == nil && log != m.granted() {
			err = fmt.Errorf("it printed %q, want %q", log, m.granted())
		}
		return err
	})
}

func sameFile(a, b string) error {
	one, err := os.Stat(a)
	if err != nil {
		return err
	}
	other, err := os.Stat(b)
	if err == nil && !os.SameFile(one, other) {
		err = fmt.Errorf("%s is not %s", a, b)
	}
	return err
}

func sameFileSystem(a, b string) error {
	var one, other unix.Stat_t
	if err := errors.Join(unix.Stat(a, &one), unix.Stat(b, &other)); err != nil {
		return err
	}
	if one.Dev != other.Dev {
		return fmt.Errorf("%s and %s are on different file systems", a, b)
	}
	return nil
}

// checkRunsOn checks that a client is the same process as before and was never disconnected.
func (m *mpsRig) checkRunsOn(t testing.TB, pod *corev1.Pod, before int) {
	t.Helper()
	now, err := m.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("pod %s is %s with %d restarts, want it to continue", pod.Name, now.Status.Phase,
			now.Status.ContainerStatuses[0].RestartCount)
		return
	}
	if got := mainProcess(t, pod).PID; got != before {
		t.Errorf("pod %s is process %d, was %d", pod.Name, got, before)
	}
	if log, err := m.PodLogs(t.Context(), pod.Namespace, pod.Name, "main"); err != nil || log != m.granted() {
		t.Errorf("pod %s printed %q (%v), want %q and no more", pod.Name, log, err, m.granted())
	}
}

// testMPSAgentKilled checks that daemon and clients continue undisturbed when the agent is killed and another one
// starts.
func testMPSAgentKilled(t *testing.T, m *mpsRig, clients []*corev1.Pod) {
	check := m.watchDaemon(t, clients)
	ctx := timeout(t, time.Minute)
	if err := m.mode.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	m.waitHealthy(t, offers{})
	if err := m.mode.Start(ctx); err != nil {
		t.Fatal(err)
	}
	m.waitHealthy(t, offers{gpuResource: 7, sharedResource: mpsReplicas})
	check()
}

// testMPSAgentUpgraded upgrades the agent: at no moment is a replica unhealthy.
func testMPSAgentUpgraded(t *testing.T, m *mpsRig, clients []*corev1.Pod) {
	check := m.watchDaemon(t, clients)
	want := offers{gpuResource: 7, sharedResource: mpsReplicas}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	differing, looks := []offers{}, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Sample without a pause: a pod can be refused a replica that is unhealthy for only a moment.
		for ctx.Err() == nil {
			if got, err := m.healthy(ctx); err == nil {
				looks++
				if !maps.Equal(got, want) {
					differing = append(differing, got)
				}
			}
		}
	}()
	if err := m.mode.Upgrade(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The new agent gets the state that it publishes from daemon and kubelet.
	m.waitHeld(t, clients...)
	cancel()
	<-done
	if len(differing) > 0 || looks < 10 {
		t.Errorf("of %d samples of the kubelet %d had other devices than %v: %v", looks, len(differing), want, differing)
	}
	check()
}

// watchDaemon records the processes of daemon and clients; the returned check compares them.
func (m *mpsRig) watchDaemon(t testing.TB, clients []*corev1.Pod) (check func()) {
	t.Helper()
	daemon, pids := m.mustDaemon(t), []int{}
	for _, pod := range clients {
		pids = append(pids, mainProcess(t, pod).PID)
	}
	return func() {
		t.Helper()
		if got := m.mustDaemon(t); got != daemon {
			t.Errorf("the daemon is process %d, was %d", got, daemon)
		}
		for i, pod := range clients {
			m.checkRunsOn(t, pod, pids[i])
		}
	}
}

// testMPSDaemonKilled checks that no replica is allocated while its daemon does not run, and that all are with the next
// daemon. The clients end with the daemon, as CUDA programs do.
func testMPSDaemonKilled(t *testing.T, m *mpsRig, clients []*corev1.Pod) {
	daemon := m.mustDaemon(t)
	start := time.Now()
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.waitHealthy(t, offers{gpuResource: 7})
	t.Logf("the replicas were unhealthy %s after their daemon was killed", ms(time.Since(start)))
	m.waitHealthy(t, offers{gpuResource: 7, sharedResource: mpsReplicas})
	t.Logf("and healthy again after %s", ms(time.Since(start)))
	if got := m.mustDaemon(t); got == daemon {
		t.Errorf("the daemon is process %d, which was killed", got)
	}
	if got := m.computeMode(t); got != exclusiveProcess {
		t.Errorf("the compute mode is %q, want %s", got, exclusiveProcess)
	}
	ctx := timeout(t, 30*time.Second)
	for _, pod := range clients {
		ended, err := m.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodFailed)
		if err != nil {
			t.Fatal(err)
		}
		if log, err := m.PodLogs(ctx, pod.Namespace, pod.Name, "main"); err != nil || !strings.Contains(log, "the MPS daemon has ended") {
			t.Errorf("pod %s is %s and printed %q (%v)", ended.Name, ended.Status.Phase, log, err)
		}
	}
}

// testMPSEnded ends the sharing in the configuration. The running client keeps its daemon, no other pod gets a replica,
// and when the client has ended the GPU is as it was before the tests.
func testMPSEnded(t *testing.T, m *mpsRig, _ []*corev1.Pod) {
	last := m.run(t, mpsClient("last"))[0]
	m.checkClient(t, last)
	daemon, check := m.mustDaemon(t), m.watchDaemon(t, []*corev1.Pod{last})
	m.configure(t, "")
	const draining = "waits for default/last to end, then becomes nvidia.com/gpu (unshared)"
	m.waitDevice(t, m.uuid, "what it waits for", func(d v1alpha1.GPUDevice) error {
		if d.Offered == nil || d.Offered.Sharing != "mps" || d.Offered.Draining != draining {
			return fmt.Errorf("it is advertised as %+v", d.Offered)
		}
		return nil
	})
	if got := m.berth(t, "gpus", "--kubeconfig", m.KubeconfigPath()); !strings.Contains(got.out, "GPU 2: "+draining) {
		t.Errorf("berth gpus does not show that GPU 2 %s:\n%s%s", draining, got.out, got.err)
	}
	m.waitOffers(t, offers{gpuResource: 7})
	if got := m.computeMode(t); got != exclusiveProcess {
		t.Errorf("the compute mode is %q while a client runs, want %s", got, exclusiveProcess)
	}
	check()

	if err := m.remove(timeout(t, 30*time.Second), last); err != nil {
		t.Fatal(err)
	}
	m.waitOffers(t, offers{gpuResource: 8})
	waitUntil(t, 15*time.Second, "nothing is left of MPS", func(context.Context) error {
		if mode := m.computeMode(t); mode != "" {
			return fmt.Errorf("the compute mode is %s", mode)
		}
		if err := m.isDaemon(daemon); err == nil {
			return fmt.Errorf("the daemon, process %d, still runs", daemon)
		}
		if _, err := os.Stat(m.dir("")); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there: %v", m.dir(""), err)
		}
		return nil
	})
}
