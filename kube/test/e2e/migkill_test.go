package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// soakOnly skips a test that takes long, unless BERTH_SOAK is set.
func soakOnly(t *testing.T) {
	t.Helper()
	if os.Getenv(envSoak) == "" {
		t.Skip("it takes long; set BERTH_SOAK")
	}
}

// seeded returns a random source for a test, which BERTH_SEED repeats.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%s: want a number", envSeed, text)
		}
	}
	t.Logf("%s=%d repeats this", envSeed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// killLayouts change every GPU: on some of them devices are created and removed beside those that are held, on others
// the mode changes, which needs a reset of these GPUs.
const killLayouts = `version: v1
mig-configs:
  kill-a:
  - {devices: [0, 1, 2, 3], mig-enabled: true, mig-devices: {"3g.20gb": 1, "1g.5gb": 4}}
  - {devices: [4, 5, 6, 7], mig-enabled: false}
  kill-b:
  - {devices: [0, 1, 2, 3], mig-enabled: true, mig-devices: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}}
  - {devices: [4, 5], mig-enabled: true, mig-devices: {"7g.40gb": 1}}
  - {devices: [6, 7], mig-enabled: true, mig-devices: {"1g.5gb": 7}}
`

// killLayout is a layout with the devices that the node then has.
type killLayout struct {
	name string
	want map[string]int
}

func killPair() [2]killLayout {
	return [2]killLayout{
		{"kill-a", map[string]int{mig3g: 4, mig1g: 16, gpuResource: 4}},
		{"kill-b", map[string]int{mig3g: 4, mig2g: 4, mig1g: 22, "nvidia.com/mig-7g.40gb": 2}},
	}
}

// The agent's directories on the node, and its journal of a MIG change.
const (
	stateFolder      = "run/berth"
	persistentFolder = "var/lib/berth"
	migJournal       = "mig-change.json"
)

// testKilledDuringLayouts kills the agent at random moments of MIG changes, and sometimes its successor too. Each time
// the node must end with exactly the requested layout, and the pods that run on it must continue undisturbed.
func testKilledDuringLayouts(t *testing.T, l *lab) {
	soakOnly(t)
	random := seeded(t)
	const rounds = 60
	layouts := killPair()
	l.setMap(t, layoutsMap, map[string]string{"config.yaml": killLayouts})
	l.layout(t, layouts[0].name, layouts[0].want)
	pods := l.run(t, podRequesting("large", mig3g, 1), podRequesting("small-1", mig1g, 1), podRequesting("small-2", mig1g, 1))
	witnesses := l.watchPods(t, pods...)
	held := l.heldDevices(t, pods)

	// The duration of an undisturbed change determines the random moments.
	at := l.label(t, map[string]string{labelMIG: layouts[1].name})
	l.waitKubelet(t, layouts[1].want)
	l.waitState(t, "success")
	usual := time.Since(at)
	cut, twice := 0, 0
	var longest time.Duration
	for round := range rounds {
		next := layouts[round%2]
		at := l.label(t, map[string]string{labelMIG: next.name})
		within := usual
		if round%2 == 1 { // Every other round kills the agent while the journal is open.
			l.waitJournal(t)
			within /= 2
		}
		time.Sleep(time.Duration(random.Int64N(int64(within))))
		killed := l.killAgent(t)
		if journal := l.journal(t); journal != "" {
			cut++
		}
		if random.IntN(3) == 0 {
			twice++
			if err := l.node.StartAgent(t.Context(), sandbox.AgentOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(random.Int64N(int64(usual))))
			killed = l.killAgent(t)
		}
		if err := l.mode.Start(timeout(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		l.waitKubelet(t, next.want)
		l.waitState(t, "success")
		longest = max(longest, time.Since(killed))
		l.checkConverged(t, held)
		if t.Failed() {
			t.Fatalf("in round %d, %s after layout %s was requested", round, ms(killed.Sub(at)), next.name)
		}
	}
	l.waitAllocatableOf(t, layouts[(rounds-1)%2].want)
	l.checkUndisturbed(t, witnesses...)
	t.Logf("a change takes %s; the agent was killed in %d of them, %d times with the journal open, %d times its "+
		"successor too; from the last kill to success %s at most",
		ms(usual), rounds, cut, twice, ms(longest))
	if cut == 0 {
		t.Error("no agent was killed during a change, so this test has shown nothing")
	}
}

func (l *lab) killAgent(t testing.TB) time.Time {
	t.Helper()
	if err := l.node.KillAgent(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// journal returns the text of the journal of a MIG change; empty when no change is in progress.
func (l *lab) journal(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.node.Root(), persistentFolder, migJournal))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// waitJournal waits until a MIG change is in progress. It polls without a pause, because the change is too short for a
// slower poll.
func (l *lab) waitJournal(t testing.TB) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); l.journal(t) == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no MIG change started within 20 s")
		}
	}
}

// heldDevices returns the devices of pods in the agent's ledger, by the pod's name.
func (l *lab) heldDevices(t testing.TB, pods []*corev1.Pod) map[string]string {
	t.Helper()
	held := map[string]string{}
	waitUntil(t, 10*time.Second, "the ledger has a device of each pod", func(ctx context.Context) error {
		state, err := l.agentState(ctx)
		if err != nil {
			return err
		}
		clear(held)
		for _, h := range state.Holdings {
			if h.Holder.Kind == "Pod" && h.Holder.Pod != "" {
				held[h.Holder.Pod] = string(h.Key.Device())
			}
		}
		if len(held) != len(pods) {
			return fmt.Errorf("it has %v", held)
		}
		return nil
	})
	return held
}

// checkConverged checks that nothing of a change is left, and that pods hold the same devices as before, in the ledger
// and on the hardware.
func (l *lab) checkConverged(t testing.TB, held map[string]string) {
	t.Helper()
	waitUntil(t, 15*time.Second, "nothing of the change is left", func(ctx context.Context) error {
		if journal := l.journal(t); journal != "" {
			return fmt.Errorf("the journal is there: %s", journal)
		}
		state, err := l.agentState(ctx)
		if err != nil {
			return err
		}
		now := map[string]string{}
		for _, h := range state.Holdings {
			if h.Holder.Kind == "Pod" {
				now[h.Holder.Pod] = string(h.Key.Device())
				continue
			}
			return fmt.Errorf("the ledger has %+v", h)
		}
		for pod, device := range held {
			if now[pod] != device {
				return fmt.Errorf("pod %s has %q in the ledger, and had %s", pod, now[pod], device)
			}
		}
		for _, s := range state.MIG {
			if s.State != "Applied" {
				return fmt.Errorf("GPU %d is %s: %s", s.Index, s.State, s.Message)
			}
		}
		return nil
	})
	node, err := l.nodeObject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if node.Spec.Unschedulable || len(node.Spec.Taints) > 0 || node.Labels[labelMIGState] != "success" {
		t.Errorf("the Node is unschedulable: %v, with the taints %v and the state %q", node.Spec.Unschedulable,
			node.Spec.Taints, node.Labels[labelMIGState])
	}
	there := map[string]bool{}
	for _, gpuInfo := range hardware(t, l.node.SimDir()).GPUs {
		for _, device := range gpuInfo.MIGDevices {
			there[device.UUID] = true
		}
		if gpuInfo.MIGAfterReset != "" {
			t.Errorf("the MIG mode of GPU %d waits for a reset", gpuInfo.Index)
		}
	}
	for pod, device := range held {
		if strings.HasPrefix(device, "MIG-") && !there[device] {
			t.Errorf("pod %s holds %s, which the hardware no longer has", pod, device)
		}
	}
}

// mpsConfig shares GPU 2 by MPS.
const mpsConfig = plainConfig + "gpus: [{select: {index: [2]}, sharing: {mode: mps, replicas: 8, resourceName: " + mpsResource + "}}]\n"

// testKilledDuringMPS kills agent and supervisor while an MPS daemon starts, and the supervisor while the daemon runs.
// There must never be more than one daemon.
func testKilledDuringMPS(t *testing.T, l *lab) {
	soakOnly(t)
	random := seeded(t)
	with := map[string]int{gpuResource: nodeGPUs - 1, mpsResource: 8}
	without := map[string]int{gpuResource: nodeGPUs}
	at := l.setConfigs(t, map[string]string{"default": mpsConfig})
	usual := l.waitKubelet(t, with).Sub(at)
	t.Logf("shared by MPS %s after the edit", ms(usual))
	for round := range 40 {
		l.setConfigs(t, map[string]string{"default": plainConfig})
		l.waitKubelet(t, without)
		l.waitDaemons(t, 0)
		waitUntil(t, 10*time.Second, "GPU 2 has the compute mode that it had before", func(context.Context) error {
			if mode := l.gpuInfo(t, 2).ComputeMode; mode != "" {
				return fmt.Errorf("it has %s", mode)
			}
			return nil
		})
		l.setConfigs(t, map[string]string{"default": mpsConfig})
		time.Sleep(time.Duration(random.Int64N(int64(usual))))
		if round%2 == 0 {
			l.killAgent(t)
			if err := l.mode.Start(timeout(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
		} else {
			l.killSupervisor(t)
			l.startSupervisor(t)
		}
		l.waitDaemonShown(t)
		l.waitKubelet(t, with)
	}

	l.checkDaemonEndsWithContainer(t, with)
	l.checkDaemonIsAdopted(t, with)
}

// checkDaemonEndsWithContainer kills the supervisor in its pod while its daemon has a client. The runtime ends
// the daemon with the container, and the client ends with the daemon, as CUDA programs do. The next supervisor starts
// one daemon.
func (l *lab) checkDaemonEndsWithContainer(t *testing.T, with map[string]int) {
	t.Helper()
	client := l.run(t, podRequesting("client", mpsResource, 1, "mps"))[0]
	daemon := l.waitDaemons(t, 1)[0]
	killed := l.killSupervisor(t)
	away := l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs - 1})
	l.waitDaemons(t, 0)
	ended, err := l.WaitPhase(timeout(t, 30*time.Second), client.Namespace, client.Name, corev1.PodFailed)
	if err != nil {
		t.Fatal(err)
	}
	if log, err := l.PodLogs(t.Context(), client.Namespace, client.Name, "main"); err != nil || !strings.Contains(log, "the MPS daemon has ended") {
		t.Errorf("pod %s is %s and printed %q (%v)", ended.Name, ended.Status.Phase, log, err)
	}
	l.startSupervisor(t)
	back := l.waitKubelet(t, with)
	t.Logf("supervisor killed: its replicas are unhealthy after %s, healthy again after %s", ms(away.Sub(killed)), ms(back.Sub(killed)))
	if now := l.waitDaemons(t, 1)[0]; now == daemon {
		t.Errorf("the daemon is process %d, which has ended", now)
	}
}

// checkDaemonIsAdopted kills a supervisor that is a process of the host, which docs/sharing.md offers beside
// a pod: its daemon and the client continue, and the next supervisor adopts the daemon.
func (l *lab) checkDaemonIsAdopted(t *testing.T, with map[string]int) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	l.killSupervisor(t)
	l.waitDaemons(t, 0) // The runtime ends the daemon after the supervisor: the client must not get that one.
	l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs - 1})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(l.node.EndMPSProcess(ctx, syscall.SIGTERM), l.node.StartMPS(ctx)); err != nil {
			t.Error(err)
		}
	})
	if err := l.node.StartMPSProcess(); err != nil {
		t.Fatal(err)
	}
	l.waitDaemons(t, 1)
	l.waitKubelet(t, with)
	client := l.run(t, podRequesting("client-of-process", mpsResource, 1, "mps"))
	witnesses := l.watchPods(t, client...)
	daemon := l.waitDaemons(t, 1)[0]
	if err := l.node.EndMPSProcess(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs - 1})
	if err := l.node.StartMPSProcess(); err != nil {
		t.Fatal(err)
	}
	l.waitKubelet(t, with)
	if now := l.waitDaemons(t, 1)[0]; now != daemon {
		t.Errorf("the daemon was process %d and is %d, want it adopted", daemon, now)
	}
	if now := l.waitDaemonShown(t); now != daemon {
		t.Errorf("the agent shows process %d, want %d", now, daemon)
	}
	l.killAgent(t)
	if err := l.mode.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	l.waitKubelet(t, with)
	if now := l.waitDaemons(t, 1)[0]; now != daemon {
		t.Errorf("the daemon was process %d and is %d after the agent was killed", daemon, now)
	}
	l.checkUndisturbed(t, witnesses...)
}

func (l *lab) killSupervisor(t testing.TB) time.Time {
	t.Helper()
	if err := l.node.KillMPS(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

func (l *lab) startSupervisor(t testing.TB) {
	t.Helper()
	if err := l.node.StartMPS(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// waitDaemonShown waits until one MPS control daemon of this node runs and the agent shows it as ready, and returns its process. The
// kubelet's list alone can be that of a daemon that has ended: the agent notices the end of a supervisor after 2 s.
func (l *lab) waitDaemonShown(t testing.TB) (pid int) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the agent shows the one MPS daemon that runs", func(ctx context.Context) error {
		running := l.daemons(t)
		state, err := l.agentState(ctx)
		if err == nil && (len(running) != 1 || len(state.MPS) != 1 || state.MPS[0].State != "Ready" || state.MPS[0].PID != running[0]) {
			err = fmt.Errorf("it has %+v, and there are the processes %v", state.MPS, running)
		}
		if err == nil {
			pid = running[0]
		}
		return err
	})
	return pid
}

// waitDaemons waits until this number of MPS control daemons of this node runs, and returns their processes.
func (l *lab) waitDaemons(t testing.TB, want int) []int {
	t.Helper()
	var found []int
	waitUntil(t, 30*time.Second, fmt.Sprintf("%d MPS daemons run", want), func(context.Context) error {
		found = l.daemons(t)
		if len(found) != want {
			return fmt.Errorf("there are the processes %v", found)
		}
		return nil
	})
	return found
}

// daemons returns the processes that are MPS control daemons of this node's hardware.
func (l *lab) daemons(t testing.TB) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(file))
		if err != nil {
			t.Fatal(err)
		}
		if args, err := mpsControlOf(l.node, pid); err == nil && slices.Contains(args, "-f") { // an error means that it has ended
			found = append(found, pid)
		}
	}
	return found
}
