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
	// daemonLog takes what the daemon writes to its standard output and error.
	daemonLog = "daemon.log"
	// maxLog is the size at which a log is emptied.
	maxLog = 16 << 20
	// quitPatience is how long clients have to end once a daemon is to quit; killPatience is how long a
	// process may take to end after a signal.
	quitPatience = 10 * time.Second
	killPatience = 5 * time.Second
)

// daemon is a control daemon that runs: our child, or one that an earlier supervisor left.
type daemon struct {
	handle *handle
	start  uint64
	// multiUser is how it was started.
	multiUser bool
	// exited is closed when it has ended; cause is set by then.
	exited chan struct{}
	cause  string
}

// launch starts a control daemon. What it prints goes into a file, not a pipe, so that it does not
// die of a broken pipe after its supervisor.
func (s *Supervisor) launch(want Wanted, shim []string) (*daemon, error) {
	logDir := LogDir(s.deps.Root, want.GPU)
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
	// A signal that a terminal sends to the supervisor is for the supervisor alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w (is NVIDIA's driver with its MPS programs mounted into this container?)", s.deps.Program[0], err)
	}
	d := &daemon{multiUser: want.MultiUser, exited: make(chan struct{})}
	if d.handle, err = holdAny(cmd.Process.Pid); err == nil {
		var at stat
		at, err = readStat(cmd.Process.Pid)
		d.start = at.start
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("take hold of the control daemon: %w", err)
	}
	go func() {
		_ = cmd.Wait()
		d.cause = cmd.ProcessState.String()
		close(d.exited)
	}()
	return d, nil
}

// adopt finds the daemon of a GPU that an earlier supervisor left: nil when there is none. What it finds
// may not answer yet.
func (s *Supervisor) adopt(id gpu.UUID, journal *record) (*daemon, error) {
	pids, err := family(s.mark(id))
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		h, err := hold(pid, s.mark(id))
		if err != nil {
			continue // it has ended meanwhile
		}
		at, err := readStat(pid)
		// A journal without a process was written before the daemon was started; the mark alone decides then.
		if err != nil || journal != nil && journal.PID != 0 && (journal.PID != pid || journal.StartTime != at.start) {
			h.close()
			continue
		}
		d := &daemon{handle: h, start: at.start, multiUser: hasArgument(pid, multiUserFlag), exited: make(chan struct{})}
		go func() {
			if err := h.wait(context.Background()); err == nil {
				d.cause = "it was not our child, so its exit status is unknown"
				close(d.exited)
			}
		}()
		return d, nil
	}
	return nil, nil
}

// sweep kills what is left of the family of a GPU's daemon, such as a server that has outlived it and
// would keep the GPU from the next.
func (s *Supervisor) sweep(ctx context.Context, id gpu.UUID) error {
	pids, err := family(s.mark(id))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		h, err := hold(pid, s.mark(id))
		if err != nil {
			continue
		}
		s.deps.Log.Warn("ending a process that an MPS daemon left", "gpu", id, "pid", pid)
		err = errors.Join(h.signal(unix.SIGKILL), waitFor(ctx, h, killPatience))
		h.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits a bounded time for a process to end.
func waitFor(ctx context.Context, h *handle, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := h.wait(ctx); err != nil {
		return fmt.Errorf("process %d has not ended within %s", h.pid, patience)
	}
	return nil
}

// gone waits a bounded time for a daemon to end.
func (d *daemon) gone() bool {
	timer := time.NewTimer(killPatience)
	defer timer.Stop()
	select {
	case <-d.exited:
		return true
	case <-timer.C:
		return false
	}
}

// kill ends a daemon that does not hear.
func (s *Supervisor) kill(id gpu.UUID, d *daemon, signals ...unix.Signal) error {
	for _, signal := range signals {
		s.deps.Log.Warn("ending MPS daemon", "gpu", id, "pid", d.handle.pid, "signal", unix.SignalName(signal))
		if err := d.handle.signal(signal); err != nil {
			return err
		}
		if d.gone() {
			return nil
		}
	}
	return fmt.Errorf("end MPS daemon of %s: process %d is still there after SIGKILL; it hangs in the driver, which takes a GPU reset or a reboot", id, d.handle.pid)
}

// end makes a daemon quit: by command, then by SIGTERM, then by SIGKILL.
func (s *Supervisor) end(ctx context.Context, id gpu.UUID, d *daemon) error {
	_, err := s.control(id).ask(ctx, quitPatience+answerTime, fmt.Sprintf("quit -t %d", int(quitPatience.Seconds())))
	if (err == nil || !d.handle.alive()) && d.gone() {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.deps.Log.Warn("MPS daemon does not quit when told", "gpu", id, "pid", d.handle.pid, "error", err)
	return s.kill(id, d, unix.SIGTERM, unix.SIGKILL)
}

// lastWords are the end of a daemon's logs: of what it printed, and of its own log if that is something else.
func lastWords(logDir string) string {
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

// boundLogs empties logs that have grown too large; the daemon goes on writing.
func boundLogs(logDir string) {
	for _, name := range []string{daemonLog, "control.log", "server.log"} {
		path := filepath.Join(logDir, name)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			_ = os.Truncate(path, 0)
		}
	}
}
