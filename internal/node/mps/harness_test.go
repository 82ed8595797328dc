package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

// TestMain lets this test binary act as every program that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch args := os.Args[2:]; os.Args[1] {
		case "mps-control":
			os.Exit(tools.MPSControl(args[0], args[1:], os.Stdin, os.Stdout, os.Stderr))
		case "mps-client":
			os.Exit(tools.MPSClient(args, os.Stdout, os.Stderr))
		case "mps-shim":
			fmt.Fprintln(os.Stderr, ExecDaemon(args))
			os.Exit(1)
		case "mps-supervisor":
			os.Exit(runCrashingSupervisor(args[0]))
		}
	}
	// The race detector would let each of those programs sleep for a second at its end.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}

// timeout is how long a test waits for real processes before it fails.
const timeout = 20 * time.Second

// crashingSupervisor is a supervisor in its own process, which kills itself when a step is reached for the Nth time.
type crashingSupervisor struct {
	Root    string
	Machine string
	Step    Step
	Nth     int
	Shim    bool
}

func runCrashingSupervisor(text string) int {
	var v crashingSupervisor
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		fmt.Println(err)
		return 2
	}
	machine, err := sim.OpenRoot(v.Machine)
	if err != nil {
		fmt.Println(err)
		return 2
	}
	var mu sync.Mutex
	deps := Deps{
		Root: v.Root, Program: []string{self(), "mps-control", v.Machine}, ComputeMode: newModes(machine),
		Log: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		Fault: func(step Step) error {
			mu.Lock()
			defer mu.Unlock()
			if step == v.Step {
				if v.Nth--; v.Nth == 0 {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
					select {}
				}
			}
			return nil
		},
	}
	if v.Shim {
		// As for a root that is mounted with mountPropagation Bidirectional.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			fmt.Println(err)
			return 2
		}
		deps.Shim = []string{self(), "mps-shim"}
	}
	s, err := New(deps)
	if err == nil {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		// Closing stdin ends the supervisor gracefully.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
		err = s.Run(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func self() string { return "/proc/" + fmt.Sprint(os.Getpid()) + "/exe" }

// modes is NVML of a simulated machine.
type modes struct{ library nvml.Interface }

func newModes(machine *sim.Machine) modes {
	m := modes{machine.NVML()}
	m.library.Init()
	return m
}

func (m modes) ComputeMode(_ context.Context, id gpu.UUID) (int, error) {
	device, ret := m.library.DeviceGetHandleByUUID(string(id))
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	mode, ret := device.GetComputeMode()
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return int(mode), nil
}

func (m modes) SetComputeMode(_ context.Context, id gpu.UUID, mode int) error {
	device, ret := m.library.DeviceGetHandleByUUID(string(id))
	if ret == nvml.SUCCESS {
		ret = device.SetComputeMode(nvml.ComputeMode(mode))
	}
	if ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// shortTimer is up to where testClock's timers are real: those that poll a real process.
const shortTimer = 250 * time.Millisecond

// testClock advances only on Step, except for short timers that poll real processes, and reports the timers that are
// created.
type testClock struct {
	*clocktesting.FakeClock
	made chan *testTimer
}

// testTimer is a timer of testClock that records that its owner no longer waits for it.
type testTimer struct {
	clock.Timer
	d       time.Duration
	stopped atomic.Bool
}

func (t *testTimer) Stop() bool {
	t.stopped.Store(true)
	return t.Timer.Stop()
}

func newTestClock() *testClock {
	return &testClock{clocktesting.NewFakeClock(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)), make(chan *testTimer, 1000)}
}

func (c *testClock) NewTimer(d time.Duration) clock.Timer {
	if d <= shortTimer {
		return clock.RealClock{}.NewTimer(d)
	}
	timer := &testTimer{Timer: c.FakeClock.NewTimer(d), d: d}
	c.made <- timer
	return timer
}

// steady is how long, in real time, a goroutine must wait on a timer to count as waiting: a keeper that is woken at the
// same time creates a timer and stops it at once.
const steady = 20 * time.Millisecond

// await blocks until a goroutine waits for d. A timer that was stopped does not count: its owner does something else.
func (c *testClock) await(t testing.TB, d time.Duration) {
	t.Helper()
	limit := time.After(timeout)
	for {
		select {
		case timer := <-c.made:
			if timer.d != d || timer.stopped.Load() {
				continue
			}
			time.Sleep(steady)
			if !timer.stopped.Load() {
				return
			}
		case <-limit:
			t.Fatalf("no goroutine waits for %s", d)
		}
	}
}

// pass blocks until a goroutine waits for d, and lets that time pass.
func (c *testClock) pass(t testing.TB, d time.Duration) {
	t.Helper()
	c.await(t, d)
	c.Step(d)
}

// forget discards the timers that were created until now.
func (c *testClock) forget() {
	for {
		select {
		case <-c.made:
		default:
			return
		}
	}
}

// node is a simulated machine with a root for supervisors.
type node struct {
	t       *testing.T
	machine *sim.Machine
	modes   modes
	root    string
	gpus    []gpu.UUID
	clock   *testClock
}

func newNode(t *testing.T) *node {
	t.Helper()
	// Paths of sockets are short, so t.TempDir is too long.
	root, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.CreateWith(filepath.Join(t.TempDir(), "sim"), "h100x8", sim.Options{Seed: "mps", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, machine: machine, modes: newModes(machine), root: root, clock: newTestClock()}
	show, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	for _, simulated := range show.GPUs {
		n.gpus = append(n.gpus, gpu.UUID(simulated.UUID))
	}
	t.Cleanup(func() {
		for _, id := range n.gpus {
			for _, pid := range n.markedProcesses(id) {
				t.Errorf("process %d of %s is left", pid, id)
				if h, err := openProcess(pid, n.mark(id)); err == nil {
					_ = h.signal(syscall.SIGKILL)
					h.close()
				}
			}
		}
		os.RemoveAll(root)
	})
	return n
}

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) mark(id gpu.UUID) string {
	var at syscall.Stat_t
	if err := syscall.Stat(n.root, &at); err != nil {
		return "gone"
	}
	return fmt.Sprintf("%x:%x:%s", at.Dev, at.Ino, id)
}

func (n *node) markedProcesses(id gpu.UUID) []int {
	n.t.Helper()
	pids, err := markedProcesses(n.mark(id))
	n.check(err)
	return pids
}

func (n *node) mode(id gpu.UUID) int {
	n.t.Helper()
	mode, err := n.modes.ComputeMode(n.t.Context(), id)
	n.check(err)
	return mode
}

func (n *node) setMode(id gpu.UUID, mode int) {
	n.t.Helper()
	n.check(n.modes.SetComputeMode(n.t.Context(), id, mode))
}

// want returns a wanted daemon with default settings.
func (n *node) want(index int) Wanted {
	return Wanted{GPU: n.gpus[index], Index: index, Replicas: 4, Limits: Limits{PinnedMemoryMiB: 1000, ActiveThreadPercentage: 25, MultiUser: true}}
}

func (n *node) deps() Deps {
	return Deps{
		Root: n.root, Program: []string{self(), "mps-control", n.machine.Root()}, ComputeMode: n.modes, Clock: n.clock,
		Log: slog.New(slog.NewTextHandler(n.t.Output(), nil)),
	}
}

// running is a supervisor, in this process or in another, with a client that watches it.
type running struct {
	n      *node
	client *Client
	seen   chan []Status
	stop   func()
}

// start runs a supervisor in this process.
func (n *node) start(deps Deps) *running {
	n.t.Helper()
	s, err := New(deps)
	n.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return n.watch(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
}

// watch watches the supervisor of the root.
func (n *node) watch(end func()) *running {
	r := &running{n: n, client: &Client{Socket: SocketPath(n.root)}, seen: make(chan []Status, 10000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.client.Watch(ctx, func(now Report) { r.seen <- now.GPUs })
	}()
	r.stop = sync.OnceFunc(func() {
		end()
		cancel()
		<-done
	})
	n.t.Cleanup(r.stop)
	return r
}

// await waits for a state.
func (r *running) await(what string, good func([]Status) bool) []Status {
	r.n.t.Helper()
	var last []Status
	limit := time.After(timeout)
	for {
		select {
		case last = <-r.seen:
			if good(last) {
				return last
			}
		case <-limit:
			r.n.t.Fatalf("not %s: %+v", what, last)
		}
	}
}

// allReady reports whether all daemons of the set are Ready with the wanted limits.
func allReady(set ...Wanted) func([]Status) bool {
	return func(now []Status) bool {
		return len(now) == len(set) && !slices.ContainsFunc(now, func(st Status) bool {
			i := slices.IndexFunc(set, func(w Wanted) bool { return w.GPU == st.GPU })
			return i < 0 || st.State != Ready || st.Limits != set[i].Limits || st.Answer.ActiveThreadPercentage != float64(set[i].ActiveThreadPercentage)
		})
	}
}

func inState(state State, words ...string) func([]Status) bool {
	return func(now []Status) bool {
		return len(now) == 1 && now[0].State == state && !slices.ContainsFunc(words,
			func(word string) bool { return !strings.Contains(now[0].Reason, word) })
	}
}

func nothing(now []Status) bool { return len(now) == 0 }

// set sends a wanted set and waits until it is in force.
func (r *running) set(set ...Wanted) []Status {
	r.n.t.Helper()
	r.ask(set...)
	if len(set) == 0 {
		return r.await("nothing left", nothing)
	}
	return r.await("Ready", allReady(set...))
}

// ask sends a wanted set. It waits for a supervisor that has just been started to listen.
func (r *running) ask(set ...Wanted) {
	r.n.t.Helper()
	limit := time.Now().Add(timeout)
	for {
		_, err := r.client.Set(r.n.t.Context(), set)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnavailable) || time.Now().After(limit) {
			r.n.t.Fatal(err)
		}
	}
}

// process is a supervisor in a process of its own.
func (n *node) process(v crashingSupervisor) (r *running, died <-chan struct{}, kill func()) {
	n.t.Helper()
	v.Root, v.Machine = n.root, n.machine.Root()
	text, err := json.Marshal(v)
	n.check(err)
	cmd := exec.Command(self(), "mps-supervisor", string(text))
	if v.Shim {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	cmd.Stdout, cmd.Stderr = n.t.Output(), n.t.Output()
	stdin, err := cmd.StdinPipe()
	n.check(err)
	n.check(cmd.Start())
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	return n.watch(func() {
			stdin.Close()
			<-gone
		}), gone, func() {
			_ = cmd.Process.Kill()
			<-gone
		}
}

// cudaProgram is a client of a daemon.
type cudaProgram struct {
	cmd   *exec.Cmd
	lines chan string
}

// client starts a CUDA program of a user.
func (n *node) client(id gpu.UUID, uid int) *cudaProgram {
	n.t.Helper()
	cmd := exec.Command(self(), "mps-client", "-uid", fmt.Sprint(uid))
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+PipeDir(n.root, id))
	out, err := cmd.StdoutPipe()
	n.check(err)
	n.check(cmd.Start())
	p := &cudaProgram{cmd: cmd, lines: make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	n.t.Cleanup(p.end)
	return p
}

// granted is the output of one client that connects and disconnects.
func (n *node) granted(id gpu.UUID) string {
	n.t.Helper()
	p := n.client(id, 1)
	defer p.end()
	return p.until("ready")
}

// until returns the output of a program up to a word, or up to its end.
func (p *cudaProgram) until(word string) string {
	var out []string
	for line := range p.lines {
		out = append(out, line)
		if strings.HasPrefix(line, word) {
			break
		}
	}
	return strings.Join(out, "\n")
}

func (p *cudaProgram) end() {
	_ = p.cmd.Process.Kill()
	for range p.lines {
	}
	_ = p.cmd.Wait()
}
