package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/safetext"
)

// maxProgram bounds what is read of a program's name; the kernel's own limit is 16 bytes.
const maxProgram = 64

// Openers returns the processes that have a GPU open, in the order of their PIDs, without this process: by the device nodes
// among their file descriptors, and by NVML's process lists. A process that cannot be read is an error, since it may have the
// GPU open.
func (a *Actions) Openers(g *gpu.GPU) ([]gpu.Process, error) {
	pids, err := a.openedNodes(g)
	if err != nil {
		return nil, fmt.Errorf("find who has GPU %s open: %w", g.UUID, err)
	}
	listed, err := a.listed(g.UUID)
	if err != nil {
		return nil, err
	}
	pids = append(pids, listed...)
	slices.Sort(pids)
	var openers []gpu.Process
	for _, pid := range slices.Compact(pids) {
		if pid != os.Getpid() {
			openers = append(openers, gpu.Process{PID: pid, Program: a.program(pid), Parent: a.parent(pid)})
		}
	}
	return openers, nil
}

// openedNodes returns the processes with a file descriptor of one of the GPU's device nodes. The numbers of the device decide,
// since the node may have any name in a container.
func (a *Actions) openedNodes(g *gpu.GPU) ([]int, error) {
	names, err := os.ReadDir(a.proc)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid <= 0 {
			continue
		}
		opened, err := a.opens(pid, g)
		if err != nil {
			return nil, err
		}
		if opened {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// opens reports whether a process has one of the GPU's nodes open; false for a process that has ended.
func (a *Actions) opens(pid int, g *gpu.GPU) (bool, error) {
	dir := filepath.Join(a.proc, strconv.Itoa(pid), "fd")
	descriptors, err := os.ReadDir(dir)
	if ended(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read file descriptors of process %d: %w", pid, err)
	}
	for _, descriptor := range descriptors {
		var at unix.Statx_t
		// DONT_SYNC, since the file system behind it may belong to the process and not answer.
		if unix.Statx(unix.AT_FDCWD, filepath.Join(dir, descriptor.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &at) != nil {
			continue // closed by now
		}
		if at.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if slices.ContainsFunc(g.Nodes, func(n gpu.DeviceNode) bool { return n.Major == at.Rdev_major && n.Minor == at.Rdev_minor }) {
			return true, nil
		}
	}
	return false, nil
}

// ended reports whether an error means that the process no longer exists.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// listed returns the processes that NVML lists for a GPU.
func (a *Actions) listed(uuid gpu.UUID) ([]int, error) {
	var pids []int
	err := a.run(uuid, "list the processes", nil, func(act *action) error {
		for _, list := range []struct {
			call   string
			invoke func() ([]nvml.ProcessInfo, nvml.Return)
		}{
			{"nvmlDeviceGetComputeRunningProcesses", act.device.GetComputeRunningProcesses},
			{"nvmlDeviceGetGraphicsRunningProcesses", act.device.GetGraphicsRunningProcesses},
		} {
			processes, ret := list.invoke()
			if unsupported(ret) {
				continue
			}
			if ret != nvml.SUCCESS {
				return act.fail(list.call, ret, "")
			}
			for _, p := range processes {
				pids = append(pids, int(p.Pid))
			}
		}
		return nil
	})
	return pids, err
}

// program returns the name of a process, on one line and without characters that change how a terminal shows it.
func (a *Actions) program(pid int) string {
	name, err := tree{a.proc}.read(filepath.Join(strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return safetext.First(safetext.Line(string(name)), maxProgram)
}

// parent returns the process that started a process; 0 when it is not known.
func (a *Actions) parent(pid int) int {
	text, err := tree{a.proc}.read(filepath.Join(strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses and may contain both.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}
