package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// markName is the environment variable that identifies the processes of this supervisor. Its value names the
// supervisor's root by device and inode, which are the same under every path and in every container, and the GPU.
const markName = "BERTH_MPS_DAEMON"

// handle refers to one process; it never refers to another process that reuses the PID.
type handle struct {
	pid  int
	file *os.File
}

// openProcess opens a process that was started with the mark. It returns errNotOurs when it was not, or when there is
// no such process.
func openProcess(pid int, mark string) (*handle, error) {
	h, err := openChild(pid)
	if err != nil {
		return nil, err
	}
	// The environment is read by PID, so it is valid only if the process was still alive afterwards.
	if marked(pid, mark) && h.alive() {
		return h, nil
	}
	h.close()
	return nil, fmt.Errorf("process %d: %w: its environment does not contain %s=%s", pid, errNotOurs, markName, mark)
}

// openChild opens a child that has not been waited for, so its PID cannot have been reused.
func openChild(pid int) (*handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w: %w", pid, errNotOurs, err)
	}
	return &handle{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

var errNotOurs = errors.New("not a process of this supervisor")

func (h *handle) close() { h.file.Close() }

// alive returns false for a zombie, which has ended and has not been waited for.
func (h *handle) alive() bool {
	alive := false
	conn, err := h.file.SyscallConn()
	if err != nil {
		return false
	}
	_ = conn.Control(func(fd uintptr) { alive = !ended(fd) })
	return alive
}

func ended(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// wait returns nil when the process has ended, and an error when ctx ends or the handle is closed first.
func (h *handle) wait(ctx context.Context) error {
	conn, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = h.file.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			_ = h.file.SetReadDeadline(time.Time{})
		}
	}()
	return conn.Read(ended)
}

func (h *handle) signal(signal unix.Signal) error {
	var sent error
	conn, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), signal, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(signal), h.pid, sent)
	}
	return nil
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// marked reports whether a process was started with the mark.
func marked(pid int, mark string) bool {
	// In the middle of exec a process has neither environment nor arguments, for some microseconds. It must not be
	// missed, or a second daemon would be started.
	for range 1000 {
		content, err := os.ReadFile(procFile(pid, "environ"))
		if err != nil {
			return false
		}
		if len(content) > 0 {
			return slices.ContainsFunc(bytes.Split(content, []byte{0}), func(entry []byte) bool {
				return string(entry) == markName+"="+mark
			})
		}
		arguments, err1 := os.ReadFile(procFile(pid, "cmdline"))
		at, err2 := readStat(pid)
		if err1 != nil || err2 != nil || len(arguments) > 0 || at.noEnvironment {
			return false
		}
		runtime.Gosched()
	}
	return false
}

// markedProcesses lists the running processes with the mark, those whose parent does not have it first: the daemon
// before its servers.
func markedProcesses(mark string) ([]int, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil && marked(pid, mark) {
			pids = append(pids, pid)
		}
	}
	inFamily := func(pid int) int {
		if s, err := readStat(pid); err == nil && slices.Contains(pids, s.parent) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(pids, func(a, b int) int { return inFamily(a) - inFamily(b) })
	return pids, nil
}

// stat holds the fields of /proc/PID/stat that are used here.
type stat struct {
	parent int
	// start is in clock ticks since boot.
	start uint64
	// noEnvironment is true for zombies and kernel threads, which never have an environment.
	noEnvironment bool
}

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(content))
}

// parseStat counts fields after the last parenthesis, since the program's name, field 2, may contain anything.
func parseStat(text string) (stat, error) {
	const state, parent, flags, start = 0, 4 - 3, 9 - 3, 22 - 3 // fields 3, 4, 9 and 22, counted from the third
	const kernelThread = 0x00200000                             // PF_KTHREAD
	end := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) <= start {
		return stat{}, fmt.Errorf("parse process status %.80q: too few fields", text)
	}
	var s stat
	var err1, err2, err3 error
	var bits uint64
	s.parent, err1 = strconv.Atoi(fields[parent])
	bits, err2 = strconv.ParseUint(fields[flags], 10, 64)
	s.start, err3 = strconv.ParseUint(fields[start], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return stat{}, fmt.Errorf("parse process status: %w", err)
	}
	s.noEnvironment = bits&kernelThread != 0 || fields[state] == "Z" || fields[state] == "X"
	return s, nil
}

// hasArgument reports whether a process was started with an argument.
func hasArgument(pid int, argument string) bool {
	content, err := os.ReadFile(procFile(pid, "cmdline"))
	return err == nil && slices.Contains(strings.Split(string(content), "\x00"), argument)
}
