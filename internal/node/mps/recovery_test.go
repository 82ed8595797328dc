package mps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// steps are the named steps, each with how often it occurs before the daemon is Ready, and whether it belongs to the
// end of a daemon.
var steps = []struct {
	step Step
	nth  int
	stop bool
}{
	{WantedWritten, 1, false}, {StateWritten, 1, false}, {ModeSet, 1, false}, {DaemonStarted, 1, false},
	{StateWritten, 2, false}, {LimitsSet, 1, false},
	{WantedWritten, 2, true}, {Quit, 1, true}, {ModeRestored, 1, true}, {Removed, 1, true},
}

// TestKilledAtEachStep checks that, after a supervisor was killed at any step, the next one reaches the wanted state,
// and that a stop afterwards leaves nothing.
func TestKilledAtEachStep(t *testing.T) {
	for _, tc := range steps {
		t.Run(fmt.Sprintf("%s %d", tc.step, tc.nth), func(t *testing.T) {
			n := newNode(t)
			const before = int(nvml.COMPUTEMODE_PROHIBITED)
			want := n.want(0)
			n.setMode(want.GPU, before)
			s, died, _ := n.process(crashingSupervisor{Step: tc.step, Nth: tc.nth})
			if tc.stop {
				s.set(want)
				n.tryToSet(s)
			} else {
				n.tryToSet(s, want)
			}
			<-died
			s.stop()

			s = n.start(n.deps())
			if tc.stop {
				s.await("nothing left", nothing)
			} else {
				st := s.await("Ready", allReady(want))[0]
				if pids := n.markedProcesses(want.GPU); len(pids) != 1 || pids[0] != st.PID {
					t.Errorf("processes %v, the status says %d", pids, st.PID)
				}
				if got := n.mode(want.GPU); got != modeExclusiveProcess {
					t.Errorf("compute mode %d", got)
				}
				if got := n.granted(want.GPU); !strings.Contains(got, "pinned_mem_limit 0 1000M\nactive_thread_percentage 25.0") {
					t.Errorf("a client is granted\n%s", got)
				}
				s.set()
			}
			n.clean(want.GPU, before)
			s.stop()
			left, err := os.ReadDir(n.root)
			n.check(err)
			for _, entry := range left {
				if !slices.Contains([]string{"lock", wantedName}, entry.Name()) {
					t.Errorf("%s is left in the root", entry.Name())
				}
			}
		})
	}
}

// tryToSet sends a wanted set to a supervisor that may be killed by it.
func (n *node) tryToSet(s *running, set ...Wanted) {
	n.t.Helper()
	limit := time.Now().Add(timeout)
	for {
		_, err := s.client.Set(n.t.Context(), set)
		// The supervisor may not listen yet, or may be killed already; then the set is on disk.
		_, there := os.Stat(filepath.Join(n.root, wantedName))
		if err == nil || there == nil && errors.Is(err, ErrUnavailable) {
			return
		}
		if !errors.Is(err, ErrUnavailable) || time.Now().After(limit) {
			n.t.Fatal(err)
		}
	}
}

// TestFailsAtEachStep checks that an error at a step is reported, and that the next attempt succeeds.
func TestFailsAtEachStep(t *testing.T) {
	for _, tc := range steps {
		if tc.step == WantedWritten || tc.step == Removed {
			continue // after the one nothing was accepted, after the other nothing is left to do
		}
		t.Run(fmt.Sprintf("%s %d", tc.step, tc.nth), func(t *testing.T) {
			n := newNode(t)
			deps := n.deps()
			nth := tc.nth
			deps.Fault = func(step Step) error {
				if step == tc.step {
					if nth--; nth == 0 {
						return errors.New("disk on fire")
					}
				}
				return nil
			}
			s := n.start(deps)
			want := n.want(0)
			state := Failed
			if tc.stop {
				s.set(want)
				n.clock.forget()
				s.ask()
				state = Stopping
			} else {
				s.ask(want)
			}
			s.await("failed", inState(state, "disk on fire", "next attempt in 1s"))
			n.clock.pass(t, time.Second)
			if !tc.stop {
				s.await("Ready", allReady(want))
				if pids := n.markedProcesses(want.GPU); len(pids) != 1 {
					t.Errorf("processes %v", pids)
				}
				s.ask()
			}
			s.await("nothing left", nothing)
			n.clean(want.GPU, modeDefault)
		})
	}
}

// TestAdoption checks that killing a supervisor does not disturb daemons and clients.
func TestAdoption(t *testing.T) {
	n := newNode(t)
	s, _, kill := n.process(crashingSupervisor{})
	want := n.want(0)
	st := s.set(want)[0]
	program := n.client(want.GPU, 1)
	program.until("ready")
	kill()
	s.stop()

	s = n.start(n.deps())
	now := s.await("Ready", allReady(want))[0]
	if now.PID != st.PID || now.Restarts != 0 {
		t.Errorf("process %d became %d after %d restarts", st.PID, now.PID, now.Restarts)
	}
	select {
	case line, open := <-program.lines:
		t.Errorf("the client received %q, %v", line, open)
	default:
	}
	// An adopted daemon's end is detected like that of a child.
	n.clock.forget()
	n.check(syscall.Kill(st.PID, syscall.SIGKILL))
	s.await("Failed", inState(Failed, "not a child of this supervisor"))
	n.clock.pass(t, time.Second)
	s.await("Ready", allReady(want))
	s.set()
	n.clean(want.GPU, modeDefault)
}

// TestAdoptionToStop has a daemon that is no longer wanted when its supervisor starts again.
func TestAdoptionToStop(t *testing.T) {
	n := newNode(t)
	s, _, kill := n.process(crashingSupervisor{})
	want := n.want(0)
	s.set(want)
	kill()
	s.stop()
	n.check(wantedIn(n.root).Save(wantedFile{Generation: 7}))
	s = n.start(n.deps())
	s.await("nothing left", nothing)
	n.clean(want.GPU, modeDefault)
}

// TestKilledDaemonOfAKilledSupervisor checks that its files do not mislead the next supervisor.
func TestKilledDaemonOfAKilledSupervisor(t *testing.T) {
	n := newNode(t)
	s, _, kill := n.process(crashingSupervisor{})
	want := n.want(0)
	st := s.set(want)[0]
	kill()
	s.stop()
	n.check(syscall.Kill(st.PID, syscall.SIGKILL))
	s = n.start(n.deps())
	if now := s.await("Ready", allReady(want))[0]; now.PID == st.PID {
		t.Error("an ended process was adopted")
	}
	s.set()
	n.clean(want.GPU, modeDefault)
}

// TestReusedPID checks that a journal whose PID was reused does no harm to the other process.
func TestReusedPID(t *testing.T) {
	n := newNode(t)
	other := exec.Command("/bin/sleep", "1000")
	n.check(other.Start())
	defer func() {
		if err := other.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the other process was ended: %v", err)
		}
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	at, err := readStat(other.Process.Pid)
	n.check(err)
	want := n.want(0)
	n.check(os.MkdirAll(filepath.Join(n.root, string(want.GPU)), 0o711))
	n.check(recordOf(n.root, want.GPU).Save(record{
		Wanted: want, PreviousMode: modeDefault, PID: other.Process.Pid, StartTime: at.start,
	}))
	n.check(wantedIn(n.root).Save(wantedFile{Generation: 1, Wanted: []Wanted{want}}))
	s := n.start(n.deps())
	if st := s.await("Ready", allReady(want))[0]; st.PID == other.Process.Pid {
		t.Error("the other process was adopted")
	}
	s.set()
}

// TestDaemonOfAnotherJournal checks that a daemon of this supervisor that is not the one in the journal is ended and
// replaced.
func TestDaemonOfAnotherJournal(t *testing.T) {
	for name, edit := range map[string]func(*record){
		"another process": func(r *record) { r.PID++ },
		"another start":   func(r *record) { r.StartTime++ },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s, _, kill := n.process(crashingSupervisor{})
			want := n.want(0)
			st := s.set(want)[0]
			kill()
			s.stop()
			journal, read := recordOf(n.root, want.GPU).Read()
			if read.State != statefile.Present {
				t.Fatal(read)
			}
			edit(&journal)
			n.check(recordOf(n.root, want.GPU).Save(journal))
			s = n.start(n.deps())
			now := s.await("Ready", allReady(want))[0]
			if pids := n.markedProcesses(want.GPU); now.PID == st.PID || len(pids) != 1 || pids[0] != now.PID {
				t.Errorf("processes %v, the status says %d, before it was %d", pids, now.PID, st.PID)
			}
			s.set()
			n.clean(want.GPU, modeDefault)
		})
	}
}

// TestOpenProcessNeedsTheMark checks that a process that was not started with the mark cannot be signalled.
func TestOpenProcessNeedsTheMark(t *testing.T) {
	other := exec.Command("/bin/sleep", "1000")
	other.Env = []string{markName + "=1:2:GPU-other"}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	if h, err := openProcess(other.Process.Pid, "1:2:GPU-mine"); !errors.Is(err, errNotOurs) {
		t.Errorf("openProcess of another process: %v, %v", h, err)
	}
	h, err := openProcess(other.Process.Pid, "1:2:GPU-other")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	_ = other.Process.Kill()
	if err := waitFor(t.Context(), h, timeout); err != nil || h.alive() {
		t.Errorf("after its end: %v, alive %v", err, h.alive())
	}
	if again, err := openProcess(other.Process.Pid, "1:2:GPU-other"); !errors.Is(err, errNotOurs) {
		t.Errorf("hold of a zombie: %v, %v", again, err)
	}
}

// TestCorruptFiles checks that, whichever file is lost, the daemon and its clients continue to run, and that a stop
// leaves nothing.
func TestCorruptFiles(t *testing.T) {
	other := Wanted{GPU: "GPU-x", Replicas: 1, Limits: Limits{PinnedMemoryMiB: NoLimit, ActiveThreadPercentage: 1, MultiUser: true}}
	outside := other
	outside.GPU = "GPU-/../../x"
	tests := map[string]struct{ wanted, journal string }{
		"wanted is empty":            {wanted: "-"},
		"wanted is cut off":          {wanted: `{"format":"berth-mps-wanted","version":1,"crc`},
		"wanted is of tomorrow":      {wanted: `{"format":"berth-mps-wanted","version":2,"crc32c":1,"content":{}}`},
		"wanted is of another form":  {wanted: `{"version": 1, "generation": 1, "wanted": []}`},
		"wanted leaves the root":     {wanted: enveloped(t, wantedIn("/"), wantedFile{Generation: 1, Wanted: []Wanted{outside}})},
		"the journal is empty":       {journal: "-"},
		"the journal is of another":  {journal: enveloped(t, recordOf("/", "GPU-x"), record{Wanted: other})},
		"the journal is noise":       {journal: strings.Repeat("noise", maxFile)},
		"the journal is of tomorrow": {journal: `{"format":"berth-mps-gpu","version":2,"crc32c":1,"content":{}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s, _, kill := n.process(crashingSupervisor{})
			want := n.want(0)
			st := s.set(want)[0]
			kill()
			s.stop()
			files := map[string]string{filepath.Join(n.root, wantedName): tc.wanted, recordOf(n.root, want.GPU).Path: tc.journal}
			for path, content := range files {
				if content != "" {
					n.check(os.WriteFile(path, []byte(strings.TrimPrefix(content, "-")), 0o600))
				}
			}
			s = n.start(n.deps())
			now := s.await("Ready", allReady(want))[0]
			if now.PID != st.PID {
				t.Errorf("process %d became %d", st.PID, now.PID)
			}
			if reported := strings.Contains(now.Reason, "STATE_"); reported != (tc.journal != "") {
				t.Errorf("the status says %q", now.Reason)
			}
			s.set()
			n.clean(want.GPU, modeDefault)
		})
	}
}

// enveloped is a file with a content that its writer would refuse.
func enveloped[T any](t *testing.T, file statefile.File[T], content T) string {
	t.Helper()
	file.Check = nil
	blob, err := file.Encode(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(blob)
}

// TestLeftovers checks that the remaining processes of an ended daemon are killed before the next one starts, including
// those of an earlier supervisor.
func TestLeftovers(t *testing.T) {
	n := newNode(t)
	want := n.want(0)
	// A server that outlives its daemon: a process with the daemon's environment.
	server := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.Env = []string{markName + "=" + n.mark(want.GPU)}
		n.check(cmd.Start())
		return cmd
	}
	ended := func(cmd *exec.Cmd) {
		t.Helper()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.String() != "signal: killed" {
			t.Errorf("the leftover ended with %v", err)
		}
	}
	old := server()
	s := n.start(n.deps())
	st := s.set(want)[0]
	ended(old)
	late := server()
	n.clock.forget()
	n.check(syscall.Kill(st.PID, syscall.SIGKILL))
	s.await("Failed", inState(Failed))
	n.clock.pass(t, time.Second)
	st = s.await("Ready", allReady(want))[0]
	if pids := n.markedProcesses(want.GPU); len(pids) != 1 || pids[0] != st.PID {
		late.Process.Kill()
		t.Errorf("processes %v, want %d", pids, st.PID)
	}
	ended(late)
	s.set()
}

// TestBothFilesLost checks that a daemon whose wanted state is lost continues to serve its clients until the agent
// sends a wanted set.
func TestBothFilesLost(t *testing.T) {
	n := newNode(t)
	s, _, kill := n.process(crashingSupervisor{})
	want := n.want(0)
	st := s.set(want)[0]
	program := n.client(want.GPU, 1)
	program.until("ready")
	kill()
	s.stop()
	for _, path := range []string{filepath.Join(n.root, wantedName), recordOf(n.root, want.GPU).Path} {
		n.check(os.WriteFile(path, []byte("{"), 0o600))
	}
	s = n.start(n.deps())
	s.await("undecided", inState(Starting, "its wanted state is lost"))
	if pids := n.markedProcesses(want.GPU); len(pids) == 0 || !slices.Contains(pids, st.PID) {
		t.Errorf("processes %v, want %d among them", pids, st.PID)
	}
	if now := s.set(want)[0]; now.PID != st.PID {
		t.Errorf("process %d became %d", st.PID, now.PID)
	}
	select {
	case line, open := <-program.lines:
		t.Errorf("the client received %q, %v", line, open)
	default:
	}
	s.set()
	n.clean(want.GPU, modeDefault)
}

// TestChangedOnDisk checks that a digit that a bad disk has changed is treated as damage and not as another wanted
// state, and that the damaged file is kept.
func TestChangedOnDisk(t *testing.T) {
	n := newNode(t)
	s, _, kill := n.process(crashingSupervisor{})
	want := n.want(0)
	s.set(want)
	kill()
	s.stop()
	path := filepath.Join(n.root, wantedName)
	blob, err := os.ReadFile(path)
	n.check(err)
	spoilt := strings.Replace(string(blob), fmt.Sprint(want.PinnedMemoryMiB), "9000", 1)
	n.check(os.WriteFile(path, []byte(spoilt), 0o600))
	s = n.start(n.deps())
	if limits := s.await("Ready", inState(Ready))[0].Limits; limits != want.Limits {
		t.Errorf("limits %+v, want %+v", limits, want.Limits)
	}
	s.set()
	n.clean(want.GPU, modeDefault)
}
