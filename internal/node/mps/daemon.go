package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	multiUserFlag = "-multiuser-server"
	// daemonLog is the file of the daemon's standard output and error.
	daemonLog = "daemon.log"
	// maxLog is the size at which a log is truncated.
	maxLog = 16 << 20
	// quitTimeout is how long clients have to end after a daemon was asked to quit; killTimeout is how long a process
	// has to end after a signal.
	quitTimeout = 10 * time.Second
	killTimeout = 5 * time.Second
)

// daemon is a running control daemon: a child of this process, or one that an earlier supervisor started.
type daemon struct {
	handle *handle
	start  uint64
	// multiUser is true if it was started with -multiuser-server.
	multiUser bool
	// exited is closed when the process has ended; cause is set before that.
	exited chan struct{}
	cause  string
}

// launch starts a control daemon. Its output goes into a file, not a pipe, so that a broken pipe does not end it after
// its supervisor has ended.
func (s *Supervisor) launch(want Wanted, shim []string) (*daemon, error) {
	logDir := logDir(s.deps.Root, want.GPU)
	out, err := os.OpenFile(filepath.Join(logDir, daemonLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	argv := append(append([]string(nil), shim...), s.deps.Program...)
	argv = append(argv, "-f")
	if want.MultiUser {
		argv = append(argv, multiUserFlag)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = environment(
		"CUDA_VISIBLE_DEVICES="+string(want.GPU),
		"CUDA_MPS_PIPE_DIRECTORY="+PipeDir(s.deps.Root, want.GPU),
		"CUDA_MPS_LOG_DIRECTORY="+logDir,
		markName+"="+s.mark(want.GPU),
	)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	// A signal that a terminal sends to the supervisor must not reach the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w (is NVIDIA's driver with its MPS programs mounted into this container?)",
			s.deps.Program[0], err)
	}
	d := &daemon{multiUser: want.MultiUser, exited: make(chan struct{})}
	if d.handle, err = openChild(cmd.Process.Pid); err == nil {
		var at stat
		at, err = readStat(cmd.Process.Pid)
		d.start = at.start
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("open pidfd of the control daemon: %w", err)
	}
	go func() {
		_ = cmd.Wait()
		d.cause = cmd.ProcessState.String()
		close(d.exited)
	}()
	return d, nil
}

// adopt returns the daemon that an earlier supervisor started for a GPU, or nil when there is none. The daemon may not
// respond yet.
func (s *Supervisor) adopt(id gpu.UUID, journal *record) (*daemon, error) {
	pids, err := markedProcesses(s.mark(id))
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		h, err := openProcess(pid, s.mark(id))
		if err != nil {
			continue // it has ended since
		}
		at, err := readStat(pid)
		// A journal without a PID was written before the daemon was started; only the mark decides then.
		if err != nil || journal != nil && journal.PID != 0 && (journal.PID != pid || journal.StartTime != at.start) {
			h.close()
			continue
		}
		d := &daemon{handle: h, start: at.start, multiUser: hasArgument(pid, multiUserFlag), exited: make(chan struct{})}
		go func() {
			if err := h.wait(context.Background()); err == nil {
				d.cause = "it was not a child of this supervisor, so its exit status is unknown"
				close(d.exited)
			}
		}()
		return d, nil
	}
	return nil, nil
}

// killLeftovers kills the remaining processes of a GPU's earlier daemon, such as a server that outlived it and would
// block the GPU for the next daemon.
func (s *Supervisor) killLeftovers(ctx context.Context, id gpu.UUID) error {
	pids, err := markedProcesses(s.mark(id))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		h, err := openProcess(pid, s.mark(id))
		if err != nil {
			continue
		}
		s.deps.Log.Warn("Killed a process that an earlier MPS daemon left", "gpu", id, "pid", pid)
		err = errors.Join(h.signal(unix.SIGKILL), waitFor(ctx, h, killTimeout))
		h.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits for a process to end, at most timeout.
func waitFor(ctx context.Context, h *handle, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := h.wait(ctx); err != nil {
		return fmt.Errorf("process %d has not ended within %s", h.pid, timeout)
	}
	return nil
}

// waitExit waits for a daemon to end, at most killTimeout. It reports whether the daemon has ended.
func (d *daemon) waitExit() bool {
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	select {
	case <-d.exited:
		return true
	case <-timer.C:
		return false
	}
}

// kill sends signals to a daemon that does not respond, one after the other, until it has ended.
func (s *Supervisor) kill(id gpu.UUID, d *daemon, signals ...unix.Signal) error {
	for _, signal := range signals {
		s.deps.Log.Warn("Signalled MPS daemon to end", "gpu", id, "pid", d.handle.pid, "signal", unix.SignalName(signal))
		if err := d.handle.signal(signal); err != nil {
			return err
		}
		if d.waitExit() {
			return nil
		}
	}
	return fmt.Errorf("end MPS daemon of %s: process %d is still there after SIGKILL; it hangs in the driver; reset the GPU or reboot the node",
		id, d.handle.pid)
}

// end stops a daemon: by command, then by SIGTERM, then by SIGKILL.
func (s *Supervisor) end(ctx context.Context, id gpu.UUID, d *daemon) error {
	_, err := s.control(id).ask(ctx, quitTimeout+commandTimeout, fmt.Sprintf("quit -t %d", int(quitTimeout.Seconds())))
	if (err == nil || !d.handle.alive()) && d.waitExit() {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.deps.Log.Warn("MPS daemon did not quit on request", "gpu", id, "pid", d.handle.pid, "error", err)
	return s.kill(id, d, unix.SIGTERM, unix.SIGKILL)
}

// logTails quotes the last lines of a daemon's output, and of its own log if that differs.
func logTails(logDir string) string {
	printed, logged := shorten(tail(filepath.Join(logDir, daemonLog))), shorten(tail(filepath.Join(logDir, "control.log")))
	var words []string
	if printed != "" {
		words = append(words, fmt.Sprintf("%s ends with %q", daemonLog, printed))
	}
	if logged != "" && logged != printed {
		words = append(words, fmt.Sprintf("control.log ends with %q", logged))
	}
	if words == nil {
		return "its logs in " + logDir + " are empty"
	}
	return strings.Join(words, "; ")
}

// tail returns the last three lines of a file, at most.
func tail(path string) string {
	const chunk = 2 << 10
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	content := make([]byte, min(size, chunk))
	n, _ := file.ReadAt(content, size-int64(len(content)))
	lines := strings.Split(strings.TrimSpace(string(content[:n])), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

// boundLogs truncates logs that are larger than maxLog; the daemon continues to write to them.
func boundLogs(logDir string) {
	for _, name := range []string{daemonLog, "control.log", "server.log"} {
		path := filepath.Join(logDir, name)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			_ = os.Truncate(path, 0)
		}
	}
}
