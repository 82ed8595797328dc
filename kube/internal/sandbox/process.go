package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTime returns field 22 of /proc/PID/stat. Together with the PID it identifies a process until the machine
// restarts, which a PID alone does not.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStartTime(data)
}

func parseStartTime(stat []byte) (uint64, error) {
	// The command name, in parentheses, may itself contain spaces and parentheses.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, fmt.Errorf("parse /proc/PID/stat: no command name in %q", stat)
	}
	fields := strings.Fields(string(stat[end+1:]))
	const afterName = 22 - 3 // the state, field 3, is fields[0]
	if len(fields) <= afterName {
		return 0, fmt.Errorf("parse /proc/PID/stat: %d fields after the name, want more than %d", len(fields), afterName)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[afterName], 10, 64)
}

// Alive reports whether the process runs; it returns false if another process has the same PID.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	t, err := startTime(p.PID)
	return err == nil && t == p.StartTime
}

// Signal sends sig to the process, never to another one with the same PID.
func (p Process) Signal(sig syscall.Signal) error {
	if p.PID == 0 {
		return os.ErrProcessDone
	}
	// The descriptor pins the process: its PID cannot be reused between the check and the signal.
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// Stop sends sig and waits until the process has ended; after grace it is killed.
func (p Process) Stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	if p.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop %s (pid %d): %w", p.Name, p.PID, err)
	}
	killAt := time.Now().Add(grace)
	for {
		// The descriptor becomes readable when all threads have ended and their ports and files are released; /proc
		// reports the process as ended a little earlier.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of %s (pid %d): %w", p.Name, p.PID, err)
		}
		if n > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stop %s (pid %d): %w", p.Name, p.PID, ctx.Err())
		}
		if sig != unix.SIGKILL && time.Now().After(killAt) {
			sig = unix.SIGKILL
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %s (pid %d): %w", p.Name, p.PID, err)
			}
		}
	}
}

// launch describes a process to start.
type launch struct {
	name string
	node string
	argv []string
	env  []string
	// outside keeps the process out of the sandbox's network.
	outside bool
	// files are inherited as descriptors from 3.
	files []*os.File
	// enter runs on the thread that will fork, for example to change its mount namespace, which the child inherits.
	enter func() error
}

// start starts a process that outlives this one. It records the process first, and moves it into the sandbox's cgroup
// before it can fork.
func (c *Cluster) start(l launch) (Process, error) {
	p := Process{Name: l.name, Node: l.node, Argv: l.argv, Log: c.logPath(l.node, l.name)}
	if err := c.update(func(s *State) { s.setProcess(p) }); err != nil {
		return p, err
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return p, fmt.Errorf("start %s: %w", l.name, err)
	}
	defer log.Close()

	cmd := exec.Command(l.argv[0], l.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// A process that enters a mount namespace would otherwise be in /. What a program does with a relative path by mistake stays here.
	cmd.Dir = c.workDir()
	if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
		return p, fmt.Errorf("start %s: %w", l.name, err)
	}
	cmd.Env = append(c.childEnv(), l.env...)
	cmd.ExtraFiles = l.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = onFreshThread(func() error {
		leave, err := c.cgroups.joinThread(filepath.Join(c.state.Cgroup, "system"), cmd.SysProcAttr)
		if err != nil {
			return err
		}
		defer leave()
		if !l.outside {
			if err := c.enterNetwork(); err != nil {
				return err
			}
		}
		if l.enter != nil {
			if err := l.enter(); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err != nil {
		return p, fmt.Errorf("start %s: %w", l.name, err)
	}
	p.PID = cmd.Process.Pid
	p.StartTime, err = startTime(p.PID)
	// This process reaps the child if it ends first; otherwise init does.
	go cmd.Wait()
	if err != nil {
		return p, fmt.Errorf("start %s: it ended immediately; see %s", l.name, p.Log)
	}
	pidFile := filepath.Join(c.dir, "run", strings.TrimPrefix(l.node+"-"+l.name, "-")+".pid")
	err = os.WriteFile(pidFile, []byte(strconv.Itoa(p.PID)+"\n"), 0o644)
	return p, errors.Join(err, c.update(func(s *State) { s.setProcess(p) }))
}

// workDir is the working directory of every process of the sandbox: an empty directory of its own.
func (c *Cluster) workDir() string { return filepath.Join(c.dir, "work") }

// childEnv is the environment of every process of the sandbox. It contains nothing of the caller's, so that a proxy
// setting or a KUBECONFIG has no effect.
func (c *Cluster) childEnv() []string {
	return []string{
		"PATH=" + c.state.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + filepath.Join(c.dir, "tmp"),
		"TMPDIR=" + filepath.Join(c.dir, "tmp"),
	}
}

// onFreshThread runs f on a new thread that is discarded afterwards, so that f may change the thread's namespaces and
// cgroup.
func onFreshThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot be discarded, and /proc/self shows its namespaces. Block it while another thread
			// runs f.
			done <- onFreshThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// tail returns the end of a log for an error message.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

// waitFor polls ok until it succeeds, one of the processes ends, or ctx ends.
func waitFor(ctx context.Context, what string, procs []Process, ok func(context.Context) error) error {
	var last error
	for {
		if last = ok(ctx); last == nil {
			return nil
		}
		for _, p := range procs {
			if !p.Alive() {
				return fmt.Errorf("wait for %s: %s ended; the end of %s:\n%s", what, p.Name, p.Log, tail(p.Log, 15))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last answer: %w", what, ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
