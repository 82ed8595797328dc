package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// clean fails unless nothing of a GPU's daemon is left and its compute mode is restored.
func (n *node) clean(id gpu.UUID, mode int) {
	n.t.Helper()
	if got := n.mode(id); got != mode {
		n.t.Errorf("compute mode of %s is %d, want %d", id, got, mode)
	}
	if left, err := os.ReadDir(filepath.Join(n.root, string(id))); err == nil {
		n.t.Errorf("the folder of %s is left: %v", id, left)
	}
	if pids := n.markedProcesses(id); len(pids) > 0 {
		n.t.Errorf("processes of %s are left: %v", id, pids)
	}
}

// TestUmask checks that clients of other users can enter the directories of a daemon even under a strict umask.
func TestUmask(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	s.set(want)
	for _, dir := range []string{PipeDir(n.root, want.GPU), logDir(n.root, want.GPU), ShmDir(n.root, want.GPU)} {
		list := exec.Command("/bin/ls", dir)
		list.Dir = "/"
		list.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := list.CombinedOutput(); err != nil {
			t.Errorf("another user lists %s: %v: %s", dir, err, out)
		}
	}
	s.set()
}

func TestLifeOfADaemon(t *testing.T) {
	n := newNode(t)
	const before = int(nvml.COMPUTEMODE_PROHIBITED)
	n.setMode(n.gpus[2], before)
	s := n.start(n.deps())
	want := n.want(2)
	st := s.set(want)[0]

	if got := n.mode(want.GPU); got != modeExclusiveProcess {
		t.Errorf("compute mode %d, want exclusive process", got)
	}
	if pids := n.markedProcesses(want.GPU); len(pids) != 1 || pids[0] != st.PID {
		t.Errorf("processes %v, the status says %d", pids, st.PID)
	}
	if !strings.Contains(st.Reason, "/dev/shm") {
		t.Errorf("the status does not say that /dev/shm is not private: %q", st.Reason)
	}
	modes := map[string]os.FileMode{
		SocketPath(n.root): os.ModeSocket | 0o600, n.root: os.ModeDir | 0o711, filepath.Join(n.root, wantedName): 0o600,
		recordOf(n.root, want.GPU).Path: 0o600, PipeDir(n.root, want.GPU): os.ModeDir | 0o755, logDir(n.root, want.GPU): os.ModeDir | 0o755,
		ShmDir(n.root, want.GPU): os.ModeDir | os.ModeSticky | 0o777,
	}
	for path, want := range modes {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
		}
	}
	// One GPU, which is device 0, with the limits.
	granted := fmt.Sprintf("device 0 %s\npinned_mem_limit 0 1000M\nactive_thread_percentage 25.0\nready", want.GPU)
	program := n.client(want.GPU, 1000)
	if got := program.until("ready"); got != granted {
		t.Errorf("a client is granted\n%s\nwant\n%s", got, granted)
	}
	program.end()

	s.set()
	n.clean(want.GPU, before)

	// The end of the supervisor ends its daemons, and the wanted set is kept.
	s.set(want)
	s.stop()
	n.clean(want.GPU, before)
	again := n.start(n.deps())
	again.await("Ready without being asked", allReady(want))
	again.set()
}

// TestEightGPUs checks that each GPU has a daemon of its own, with limits of its own.
func TestEightGPUs(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	var set []Wanted
	for i := range n.gpus {
		want := n.want(i)
		want.Replicas, want.ActiveThreadPercentage, want.PinnedMemoryMiB = i+1, 10*(i+1), int64(1000*(i+1))
		set = append(set, want)
	}
	s.set(set...)
	now, err := s.client.Status(t.Context())
	n.check(err)
	pids := map[int]bool{}
	for i, st := range now {
		if i > 0 && now[i-1].GPU >= st.GPU {
			t.Error("the statuses are out of order")
		}
		pids[st.PID] = true
	}
	if len(pids) != len(n.gpus) {
		t.Errorf("%d processes for %d GPUs", len(pids), len(n.gpus))
	}
	for _, want := range set {
		granted := fmt.Sprintf("device 0 %s\npinned_mem_limit 0 %dM\nactive_thread_percentage %d.0\nready", want.GPU,
			want.PinnedMemoryMiB, want.ActiveThreadPercentage)
		if got := n.granted(want.GPU); got != granted {
			t.Errorf("a client is granted\n%s\nwant\n%s", got, granted)
		}
	}
	// The end of one daemon ends no other.
	kept := n.markedProcesses(set[1].GPU)
	s.set(set[1:]...)
	if got := n.markedProcesses(set[1].GPU); len(got) != 1 || got[0] != kept[0] {
		t.Errorf("the daemon of an unchanged GPU is %v, was %v", got, kept)
	}
	n.clean(set[0].GPU, modeDefault)
}

// TestRestartBackoff checks that a daemon that ends is restarted with growing pauses, which are reset after it has been
// Ready for a while.
func TestRestartBackoff(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	st := s.set(want)[0]
	die := func(pause time.Duration) {
		t.Helper()
		n.clock.forget()
		n.check(syscall.Kill(st.PID, syscall.SIGKILL))
		failed := s.await("Failed", inState(Failed, "signal: killed", "daemon.log ends with", "next attempt in "+pause.String()))[0]
		if failed.PID != 0 || failed.Limits != (Limits{}) {
			t.Errorf("an ended daemon has %+v", failed)
		}
		n.clock.pass(t, pause)
		was := st
		st = s.await("Ready again", allReady(want))[0]
		if st.PID == was.PID || st.Restarts != was.Restarts+1 {
			t.Errorf("after the restart %+v, before %+v", st, was)
		}
	}
	die(time.Second)
	die(2 * time.Second)
	die(4 * time.Second)
	for range 3 {
		n.clock.pass(t, checkEvery)
	}
	die(time.Second)
	s.set()
	n.clean(want.GPU, modeDefault)
}

func TestBackoffIsBounded(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second,
		6: 32 * time.Second, 7: time.Minute, 1000: time.Minute} {
		if got := backoff(failures); got != want {
			t.Errorf("backoff(%d) = %s, want %s", failures, got, want)
		}
	}
}

// TestChangedLimits checks that the daemon, its server and its clients continue, and that the next client has the new
// limits.
func TestChangedLimits(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	st := s.set(want)[0]
	first := n.client(want.GPU, 1)
	first.until("ready")
	want.PinnedMemoryMiB, want.ActiveThreadPercentage = 2048, 50
	if now := s.set(want)[0]; now.PID != st.PID {
		t.Errorf("process %d became %d", st.PID, now.PID)
	}
	granted := fmt.Sprintf("device 0 %s\npinned_mem_limit 0 2048M\nactive_thread_percentage 50.0\nready", want.GPU)
	if got := n.granted(want.GPU); got != granted {
		t.Errorf("a client is granted\n%s\nwant\n%s", got, granted)
	}
	select {
	case line, open := <-first.lines:
		t.Errorf("the first client received %q, %v", line, open)
	default:
	}
	first.end()
	// A change by another program is reverted at the next check.
	_, err := control{n.deps().Program, PipeDir(n.root, want.GPU), logDir(n.root, want.GPU)}.ask(t.Context(),
		commandTimeout, "set_default_active_thread_percentage 99")
	n.check(err)
	n.setMode(want.GPU, modeDefault)
	// The daemon stays Ready, so its status does not show when a check has ended; and the first timer may belong to an
	// earlier check.
	for checks := 0; n.mode(want.GPU) != modeExclusiveProcess || n.granted(want.GPU) != granted; checks++ {
		if checks == 5 {
			t.Fatalf("after %d checks: compute mode %d; a client is granted\n%s\nwant\n%s", checks, n.mode(want.GPU),
				n.granted(want.GPU), granted)
		}
		n.clock.pass(t, checkEvery)
	}
	s.await("Ready again", allReady(want))
	s.set()
}

// TestUsers checks that with the multi-user server clients of all users run together, and that without it a second user
// waits.
func TestUsers(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	s.set(want)
	a, b := n.client(want.GPU, 1000), n.client(want.GPU, 2000)
	a.until("ready")
	if got := b.until("ready"); !strings.HasSuffix(got, "ready") {
		t.Errorf("the second user received %q", got)
	}

	// The change waits for the clients.
	n.clock.forget()
	want.MultiUser = false
	s.ask(want)
	s.await("waiting for clients", inState(Starting, "starts when 2 client processes have ended"))
	b.end()
	n.clock.pass(t, clientsEvery)
	s.await("waiting for one client", inState(Starting, "starts when 1 client processes have ended"))
	a.end()
	n.clock.pass(t, clientsEvery)
	s.await("Ready for one user", allReady(want))

	a = n.client(want.GPU, 1000)
	a.until("ready")
	b = n.client(want.GPU, 2000)
	if got := b.until("waiting"); got != "waiting: clients of user 1000 run" {
		t.Errorf("the second user received %q", got)
	}
	a.end()
	if got := b.until("ready"); !strings.HasSuffix(got, "ready") {
		t.Errorf("after the first user the second received %q", got)
	}
	b.end()
	s.set()
}

// TestNoLimit checks that a limit that is not wanted is not set, and that one that was set is removed only with its
// daemon.
func TestNoLimit(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	st := s.set(want)[0]
	want.PinnedMemoryMiB = NoLimit
	now := s.set(want)[0]
	if now.PID == st.PID {
		t.Error("the daemon that has a limit stayed")
	}
	granted := fmt.Sprintf("device 0 %s\nactive_thread_percentage 25.0\nready", want.GPU)
	if got := n.granted(want.GPU); got != granted {
		t.Errorf("a client is granted\n%s\nwant\n%s", got, granted)
	}
	s.set()
}

// broken is a ComputeModes that fails on request.
type broken struct {
	ComputeModes
	err chan error
}

func (b broken) SetComputeMode(ctx context.Context, id gpu.UUID, mode int) error {
	select {
	case err := <-b.err:
		return err
	default:
		return b.ComputeModes.SetComputeMode(ctx, id, mode)
	}
}

// TestFailures checks that each failure is reported, rolled back and retried.
func TestFailures(t *testing.T) {
	tests := map[string]struct {
		break_ func(n *node, deps *Deps)
		repair func(n *node, deps *Deps)
		want   []string
	}{
		"no program": {
			break_: func(_ *node, deps *Deps) { deps.Program[0] = "/nowhere/nvidia-cuda-mps-control" },
			repair: func(_ *node, deps *Deps) { deps.Program[0] = self() },
			want:   []string{"start /nowhere/nvidia-cuda-mps-control", "no such file", "driver"},
		},
		"a GPU that is partitioned": {
			break_: func(n *node, _ *Deps) { n.mig(nvml.DEVICE_MIG_ENABLE) },
			repair: func(n *node, _ *Deps) { n.mig(nvml.DEVICE_MIG_DISABLE) },
			want:   []string{"the control daemon", "exit status 1", "partitioned (MIG)", "-multiuser-server"},
		},
		"the compute mode": {
			break_: func(_ *node, deps *Deps) {
				b := broken{deps.ComputeMode, make(chan error, 1)}
				b.err <- errors.New("no permission")
				deps.ComputeMode = b
			},
			repair: func(*node, *Deps) {},
			want:   []string{"set compute mode", "no permission"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			deps := n.deps()
			tc.break_(n, &deps)
			s := n.start(deps)
			want := n.want(0)
			s.ask(want)
			s.await("Failed", inState(Failed, append(tc.want, "next attempt in 1s")...))
			tc.repair(n, &deps)
			n.clock.pass(t, time.Second)
			st := s.await("Ready", allReady(want))[0]
			if st.Restarts != 1 {
				t.Errorf("restarts %d", st.Restarts)
			}
			s.set()
			n.clean(want.GPU, modeDefault)
		})
	}
}

func (n *node) mig(mode int) {
	n.t.Helper()
	device, ret := n.modes.library.DeviceGetHandleByUUID(string(n.gpus[0]))
	if ret == nvml.SUCCESS {
		ret, _ = device.SetMigMode(mode)
	}
	if ret != nvml.SUCCESS {
		n.t.Fatal(ret)
	}
}

// TestStopFails checks that the remaining steps are retried after the daemon has ended.
func TestStopFails(t *testing.T) {
	n := newNode(t)
	deps := n.deps()
	b := broken{deps.ComputeMode, make(chan error, 1)}
	deps.ComputeMode = b
	s := n.start(deps)
	want := n.want(0)
	s.set(want)
	b.err <- errors.New("GPU is lost")
	n.clock.forget()
	s.ask()
	s.await("Stopping", inState(Stopping, "restore compute mode", "GPU is lost", "next attempt in 1s"))
	n.clock.pass(t, time.Second)
	s.await("nothing left", nothing)
	n.clean(want.GPU, modeDefault)
}

// TestWantedAgainWhileItStops checks that the last set takes effect.
func TestWantedAgainWhileItStops(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	for range 5 {
		s.ask(want)
		s.ask()
	}
	s.set(want)
	if pids := n.markedProcesses(want.GPU); len(pids) != 1 {
		t.Errorf("processes %v", pids)
	}
	s.set()
	n.clean(want.GPU, modeDefault)
}

// TestUnresponsiveDaemon checks that a running daemon that does not respond is killed after a timeout.
func TestUnresponsiveDaemon(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	st := s.set(want)[0]
	n.clock.await(t, checkEvery)
	n.check(os.Remove(filepath.Join(PipeDir(n.root, want.GPU), "control")))
	n.clock.Step(checkEvery)
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60} {
		s.await("Failed", inState(Failed, "does not answer", fmt.Sprintf("next attempt in %s", pause*time.Second)))
		n.clock.pass(t, pause*time.Second)
	}
	s.await("ended", inState(Failed, "was killed after 2m0s without a response"))
	n.clock.pass(t, time.Second)
	if now := s.await("Ready", allReady(want))[0]; now.PID == st.PID {
		t.Error("the silent daemon is still there")
	}
	s.set()
}

// TestOneSupervisor checks that the second one on a root is refused, and does no harm.
func TestOneSupervisor(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	st := s.set(want)[0]
	second, err := New(n.deps())
	n.check(err)
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another supervisor") {
		t.Errorf("the second supervisor says %v", err)
	}
	if pids := n.markedProcesses(want.GPU); len(pids) != 1 || pids[0] != st.PID {
		t.Errorf("processes %v, want %d", pids, st.PID)
	}
	s.set()
}

func TestNewRefuses(t *testing.T) {
	n := newNode(t)
	tests := map[string]struct {
		edit func(*Deps)
		want string
	}{
		"no root":          {func(d *Deps) { d.Root = "" }, "Root and ComputeMode must be set"},
		"no compute modes": {func(d *Deps) { d.ComputeMode = nil }, "Root and ComputeMode must be set"},
		"a long root":      {func(d *Deps) { d.Root = "/" + strings.Repeat("x", 60) }, "choose a shorter root"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			deps := n.deps()
			tc.edit(&deps)
			if _, err := New(deps); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestPrivateSharedMemory checks that the daemon's /dev/shm is its own tmpfs, which its clients get too, and which is
// removed with it. The test runs in its own mount namespace.
func TestPrivateSharedMemory(t *testing.T) {
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := probe.Run(); err != nil {
		t.Skipf("this process may not make a mount namespace: %v", err)
	}
	t.Setenv("TMPDIR", "/var/tmp") // The daemon does not see files of the machine's /dev/shm, where they may be otherwise.
	n := newNode(t)
	s, _, _ := n.process(crashingSupervisor{Shim: true})
	want, other := n.want(0), n.want(1)
	s.set(other)
	now := s.set(want, other)
	for _, st := range now {
		if strings.Contains(st.Reason, "/dev/shm") {
			t.Errorf("status says %q", st.Reason)
		}
		table, err := os.ReadFile(procFile(st.PID, "mountinfo"))
		n.check(err)
		if !strings.Contains(string(table), " / /dev/shm rw,nosuid,nodev,noexec,relatime") {
			t.Errorf("mounts of the daemon:\n%s", table)
		}
		// The same memory under both names, as seen by the daemon.
		inside := procFile(st.PID, "root")
		n.check(os.WriteFile(filepath.Join(inside, "dev/shm", "hello"), []byte(st.GPU), 0o644))
		content, err := os.ReadFile(filepath.Join(inside, ShmDir(n.root, st.GPU), "hello"))
		if err != nil || string(content) != string(st.GPU) {
			t.Errorf("what the daemon writes reads %q, %v", content, err)
		}
		var at unix.Statfs_t
		n.check(unix.Statfs(filepath.Join(inside, "dev/shm"), &at))
		if size := at.Blocks * uint64(at.Bsize); at.Type != unix.TMPFS_MAGIC || size < shmSize() || size > shmSize()+1<<16 {
			t.Errorf("file system %x of %d bytes, want a tmpfs of %d", at.Type, size, shmSize())
		}
	}
	s.set(want)
	// The other daemon's namespace keeps no mount of a removed GPU.
	pid := n.markedProcesses(want.GPU)[0]
	table, err := os.ReadFile(procFile(pid, "mountinfo"))
	n.check(err)
	if strings.Contains(string(table), string(other.GPU)) {
		t.Errorf("mounts of the daemon that stayed:\n%s", table)
	}
	s.set()
	n.clean(want.GPU, modeDefault)
}
