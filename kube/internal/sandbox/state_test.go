package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStateRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if _, err := readState(dir); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "start one with berth-sandbox up --dir "+dir) {
		t.Errorf("state of an empty directory: want ErrNotRunning with the command that starts it, got %v", err)
	}
	want := &State{
		Version: stateVersion, ID: "x", Phase: phaseStarting,
		Processes: []Process{{Name: "etcd", PID: 4, StartTime: 5, Argv: []string{"a"}}},
		Nodes:     []NodeState{{Name: "node-0", IP: "10.64.0.1"}},
	}
	if err := writeState(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".state-*")); len(left) != 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestStateRefusesInvalidFiles(t *testing.T) {
	for name, content := range map[string]string{"half": `{"version":`, "other version": `{"version": 99}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(statePath(dir), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := readState(dir); err == nil || !strings.Contains(err.Error(), dir) {
				t.Errorf("want an error that names the file, got %v", err)
			}
		})
	}
}

func TestStateUpdatesAreNotLost(t *testing.T) {
	dir := t.TempDir()
	if err := writeState(dir, &State{Version: stateVersion}); err != nil {
		t.Fatal(err)
	}
	const writers = 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if _, err := updateState(dir, func(s *State) { s.setProcess(Process{Name: strconv.Itoa(i)}) }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Processes) != writers {
		t.Errorf("processes written by %d writers: got %d", writers, len(s.Processes))
	}
}

func TestStateProcesses(t *testing.T) {
	var s State
	s.setProcess(Process{Name: "kubelet", Node: "node-0", PID: 1})
	s.setProcess(Process{Name: "kubelet", Node: "node-1", PID: 2})
	s.setProcess(Process{Name: "kubelet", Node: "node-0", PID: 3})
	if p := s.process("node-0", "kubelet"); p == nil || p.PID != 3 || len(s.Processes) != 2 {
		t.Errorf("a process that is set again replaces the old one: %+v", s.Processes)
	}
	s.dropProcess("node-0", "kubelet")
	if p := s.process("node-0", "kubelet"); p != nil || len(s.Processes) != 1 {
		t.Errorf("after drop: %+v", s.Processes)
	}
}

func TestParseStartTime(t *testing.T) {
	const rest = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 8 9"
	for name, c := range map[string]struct {
		stat string
		want uint64
		fail bool
	}{
		"plain":                   {"42 (etcd) S" + rest, 4711, false},
		"name like a stat line":   {"42 (a) S 1 (b) S" + rest, 4711, false},
		"zombie is not a process": {"42 (etcd) Z" + rest, 0, true},
		"cut off":                 {"42 (etcd) S 1 1", 0, true},
		"empty":                   {"", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStartTime([]byte(c.stat))
			if got != c.want || (err != nil) != c.fail {
				t.Errorf("want %d, failure %t; got %d, %v", c.want, c.fail, got, err)
			}
		})
	}
}

func sleeper(t *testing.T, args ...string) Process {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c"}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return Process{Name: "sleeper", PID: cmd.Process.Pid, StartTime: start}
}

func TestReusedPIDIsNotSignalled(t *testing.T) {
	p := sleeper(t, "exec sleep 100")
	recycled := p
	recycled.StartTime--
	if recycled.Alive() {
		t.Error("a process with another start time is treated as ours")
	}
	if err := recycled.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a recycled PID: want ErrProcessDone, got %v", err)
	}
	if err := recycled.Stop(t.Context(), syscall.SIGKILL, time.Second); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Error("the process with the recycled PID was killed")
	}
}

func TestProcessStop(t *testing.T) {
	obeys := sleeper(t, "exec sleep 100")
	if err := obeys.Stop(t.Context(), syscall.SIGTERM, time.Minute); err != nil || obeys.Alive() {
		t.Errorf("stop: %v, alive %t", err, obeys.Alive())
	}
	stubborn := sleeper(t, "trap '' TERM; echo; while :; do sleep 0.1; done")
	time.Sleep(100 * time.Millisecond) // until the trap is set
	if err := stubborn.Stop(t.Context(), syscall.SIGTERM, 50*time.Millisecond); err != nil || stubborn.Alive() {
		t.Errorf("stop of a process that ignores SIGTERM: %v, alive %t", err, stubborn.Alive())
	}
	if err := (Process{Name: "never started"}).Stop(t.Context(), syscall.SIGTERM, time.Second); err != nil {
		t.Errorf("stop of what never ran: %v", err)
	}
}
