package smi

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/internal/core/safetext"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

const (
	// maxOutput bounds the kept part of a program's output: its end, which has the reason of a failure.
	maxOutput = 16 << 10
	// maxLines and maxText bound what an error quotes.
	maxLines = 8
	maxText  = 1000
	// killWait is how long run waits for a killed program to end. A program in a call of a hung driver ends only when
	// that call does.
	killWait = 2 * time.Second
)

// run runs nvidia-smi with arguments until it ends or its time is over.
func (s *SMI) run(ctx context.Context, limit time.Duration, args ...string) error {
	if s.deps.Timeout > 0 {
		limit = s.deps.Timeout
	}
	what := "nvidia-smi " + strings.Join(args, " ")
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s was not started: %w", what, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the time of %s is over", limit))
	defer cancel()
	select {
	case s.slot <- struct{}{}:
	case <-ctx.Done():
		before := "another call"
		if running := s.running.Load(); running != nil {
			before = *running
		}
		return fmt.Errorf("%s was not started: %s has not ended (%w); if it never does, the driver hangs: reboot the node", what, before, context.Cause(ctx))
	}
	found := program{args: s.deps.Program}
	if len(found.args) == 0 {
		var err error
		if found, err = find(s.deps.DriverRoot); err != nil {
			<-s.slot
			return err
		}
	}
	output := &tail{}
	command := s.command(ctx, found, args, output)
	began := time.Now()
	if err := command.Start(); err != nil {
		<-s.slot
		return fmt.Errorf("%s was not started: %w", what, err)
	}
	running := fmt.Sprintf("%s (process %d, started %s)", what, command.Process.Pid, began.UTC().Format(time.RFC3339))
	s.running.Store(&running)
	process := bound.Start(func() (struct{}, error) {
		err := command.Wait()
		s.running.Store(nil)
		<-s.slot
		return struct{}{}, err
	})
	if !process.Wait(ctx) && !awaitKilled(process) {
		return fmt.Errorf("%s: %w, and does not end when it is killed, so the driver hangs; reboot the node%s", running, context.Cause(ctx), output.quote())
	}
	_, err := process.Result()
	return s.judge(ctx, what, output, err, time.Since(began))
}

// awaitKilled reports whether a process that was killed has ended in time.
func awaitKilled(process *bound.Pending[struct{}]) bool {
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	return process.Wait(ctx)
}

// command prepares one run. The program and what it starts are a process group, which ends as a whole.
func (s *SMI) command(ctx context.Context, found program, args []string, output *tail) *exec.Cmd {
	args = append(found.args[1:len(found.args):len(found.args)], args...)
	command := exec.CommandContext(ctx, found.args[0], args...)
	command.Env = append(append([]string{}, found.env...), s.deps.Env...)
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Chroot: found.root}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second // for processes that it started and that keep its output open
	return command
}

// judge converts the end of a run to an error with the program's own last lines and the fix.
func (s *SMI) judge(ctx context.Context, what string, output *tail, err error, took time.Duration) error {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		s.deps.Log.Info("Ran nvidia-smi", "command", what, "took", took.Round(time.Millisecond))
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s was killed: %w%s", what, context.Cause(ctx), output.quote())
	case !errors.As(err, &exit):
		return fmt.Errorf("%s: %w%s", what, err, output.quote())
	}
	return fmt.Errorf("%s ended with %s%s%s", what, exit.ProcessState, output.quote(), advice(exit.ExitCode(), output.String()))
}

// advice returns the fix, by nvidia-smi's exit codes (its manual page, RETURN VALUE) and output.
func advice(code int, output string) string {
	const inUse, notSupported, permission, notFound, noDriver, noLibrary, lost = 255, 3, 4, 6, 9, 12, 15
	switch {
	case code == inUse && strings.Contains(output, "In use by another client"),
		strings.Contains(output, "used by some other process"):
		return "; end what has the GPU open, which monitoring programs such as dcgm-exporter and nvidia-persistenced count as, and try again"
	case code == notSupported || strings.Contains(output, ": Not Supported"):
		return "; this GPU or its driver cannot do it in its present mode"
	case code == permission || strings.Contains(output, "Insufficient Permissions"):
		return "; it needs root on the node: run the agent privileged"
	case code == notFound:
		return "; the driver does not see the GPU: it was removed, or it is lost"
	case code == noDriver || code == noLibrary:
		return "; load the NVIDIA driver, or correct the driver root"
	case code == lost:
		return "; reboot the node"
	}
	return ""
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails, so that the bound does not disturb the program.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-maxOutput):]...)
	if over := len(t.text) - maxOutput; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// quote returns the last lines, for an error; empty when nothing was written.
func (t *tail) quote() string {
	var lines []string
	for line := range strings.Lines(t.String()) {
		if line = safetext.Line(line); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	text := strings.Join(lines[max(0, len(lines)-maxLines):], " / ")
	if over := len(text) - maxText; over > 0 {
		text = "…" + safetext.Last(text, maxText)
	}
	return ": " + text
}
