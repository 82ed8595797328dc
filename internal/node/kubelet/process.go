package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The largest texts that are read of one process. The kernel bounds an environment by a quarter of the stack limit,
// which can be larger; the rest is not needed here.
const (
	maxCgroup      = 64 << 10
	maxStat        = 4 << 10
	maxEnvironment = 2 << 20
	maxCommandLine = 1 << 20
)

// errNotInContainer means that a process does not belong to a container of a pod.
var errNotInContainer = errors.New("the process is in no container of a pod")

// Process is a process of a container.
type Process struct {
	PID         int
	ContainerID string
	PodUID      string
	CgroupPath  string
	// StartTime is in clock ticks since boot (field 22 of /proc/PID/stat). With
	// the PID it names the process for as long as the machine runs.
	StartTime uint64
}

// ProcessOf returns the container and pod that a process belongs to. The error is errNotInContainer when there is none,
// and fs.ErrNotExist when there is no such process.
func ProcessOf(procRoot string, pid int) (Process, error) {
	// The PID can be reused between two reads, so the start time is read before and after; a second change within
	// microseconds does not occur.
	for range 3 {
		text, err := readProc(procRoot, pid, "cgroup", maxCgroup)
		if err != nil {
			return Process{}, err
		}
		owner, ok := ParseCgroup(string(text), "")
		if !ok {
			return Process{}, fmt.Errorf("find the pod of process %d: %w", pid, errNotInContainer)
		}
		start, err := StartTime(procRoot, pid)
		if err != nil {
			return Process{}, err
		}
		again, err := readProc(procRoot, pid, "cgroup", maxCgroup)
		if err != nil {
			return Process{}, err
		}
		if bytes.Equal(text, again) {
			return Process{PID: pid, ContainerID: owner.ContainerID, PodUID: owner.PodUID, CgroupPath: owner.CgroupPath,
				StartTime: start}, nil
		}
	}
	return Process{}, fmt.Errorf("find the pod of process %d: it moves between cgroups: %w", pid, errNotInContainer)
}

// StartTime returns when a process started, in clock ticks since boot (field 22 of /proc/PID/stat; 100 ticks per second on all
// architectures of Linux that Kubernetes runs on). The error is fs.ErrNotExist when there is no such process.
func StartTime(procRoot string, pid int) (ticks uint64, err error) {
	text, err := readProc(procRoot, pid, "stat", maxStat)
	if err != nil {
		return 0, err
	}
	ticks, err = parseStat(string(text))
	if err != nil {
		return 0, fmt.Errorf("read start of process %d: %w", pid, err)
	}
	return ticks, nil
}

// parseStat returns the start time in /proc/PID/stat. The second field is the program's name in parentheses and may
// contain both blanks and parentheses, so counting starts after the last parenthesis.
func parseStat(text string) (ticks uint64, err error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return 0, errors.New("no name in stat")
	}
	fields := strings.Fields(text[end+1:])
	const start = 22 - 3 // field 22, counted from the third
	if len(fields) <= start {
		return 0, fmt.Errorf("stat has %d fields after the name, want more than %d", len(fields), start)
	}
	ticks, err = strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	return ticks, nil
}

// Environment returns the environment that a process was started with, at most 2 MiB of it; if a name occurs twice the
// first counts, as for getenv. The process can overwrite this memory, so the environment proves nothing.
func Environment(procRoot string, pid int) (map[string]string, error) {
	text, err := readProc(procRoot, pid, "environ", maxEnvironment)
	if err != nil {
		return nil, err
	}
	return parseEnvironment(strings.Split(string(text), "\x00")), nil
}

// CommandLine returns the arguments of a process, the first of which is the name of its program. The process can overwrite this memory.
// It returns an error for more than 1 MiB, and for a process without arguments, such as one that has ended.
func CommandLine(procRoot string, pid int) ([]string, error) {
	text, err := readProc(procRoot, pid, "cmdline", maxCommandLine)
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0:
		return nil, fmt.Errorf("read process %d: it has no arguments", pid)
	case len(text) >= maxCommandLine:
		return nil, fmt.Errorf("read process %d: its arguments have more than %d bytes", pid, maxCommandLine-1)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

func parseEnvironment(entries []string) map[string]string {
	result := map[string]string{}
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			continue
		}
		if _, twice := result[name]; !twice {
			result[name] = value
		}
	}
	return result
}

// readProc reads /proc/PID/name, cut off after limit bytes.
func readProc(procRoot string, pid int, name string, limit int) ([]byte, error) {
	path := filepath.Join(procRoot, strconv.Itoa(pid), name)
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read process: %w", err)
	}
	defer file.Close()
	blob := make([]byte, 0, 1024)
	for len(blob) < limit {
		if len(blob) == cap(blob) {
			blob = slices.Grow(blob, len(blob))
		}
		n, err := file.Read(blob[len(blob):min(cap(blob), limit)])
		blob = blob[:len(blob)+n]
		if n == 0 || err != nil {
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("read process: %w", err)
			}
			break
		}
	}
	return blob, nil
}
