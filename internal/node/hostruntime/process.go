package hostruntime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

const (
	// maxProcesses bounds how many entries of /proc are looked at.
	maxProcesses = 1 << 17
	// maxStatus bounds what is read of /proc/PID/status and /proc/PID/cgroup.
	maxStatus = 64 << 10
)

// process is a process that is trusted to be a program of the host.
type process struct {
	pid  int
	argv []string
	// onHost is true if it has the mount namespace of process 1.
	onHost bool
}

// program is the name of the program in the first argument.
func (p *process) program() string { return filepath.Base(p.argv[0]) }

// place says that a value is from the command line.
func (p *process) place() string {
	return fmt.Sprintf("the command line of %s (process %d)", p.program(), p.pid)
}

// wanted are the programs whose processes are looked at.
func wanted(program string) bool {
	switch program {
	case "containerd", "crio", "kubelet", "kubelite", "k3s", "hyperkube":
		return true
	}
	return false
}

// untitled returns the arguments of a process. k3s writes a title over its arguments, which can have secrets: its path, a blank and its
// command (SetProcTitle in k3s' pkg/cli/server and pkg/cli/agent). The kernel then shows the title as the first argument and the rest as
// empty ones.
func untitled(argv []string) []string {
	at := strings.LastIndexByte(argv[0], ' ')
	if at < 0 || filepath.Base(argv[0][:at]) != "k3s" || slices.ContainsFunc(argv[1:], func(arg string) bool { return arg != "" }) {
		return argv
	}
	return []string{argv[0][:at], argv[0][at+1:]}
}

// processes returns the processes of the wanted programs that no container can have started, in the order of their PIDs.
func (f *finder) processes() []process {
	if f.deps.Proc == "" || f.ownerErr != nil {
		return nil
	}
	dir, err := os.Open(f.deps.Proc)
	if err != nil {
		f.note("processes are not known: %v", err)
		return nil
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(maxProcesses)
	if err != nil && !errors.Is(err, io.EOF) {
		f.note("processes are not known: %v", err)
		return nil
	}
	var pids []int
	for _, name := range entries {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	var found []process
	for _, pid := range pids {
		argv, err := kubelet.CommandLine(f.deps.Proc, pid)
		if err != nil {
			continue
		}
		one := process{pid: pid, argv: untitled(argv)}
		if !wanted(one.program()) {
			continue
		}
		if why := f.distrust(&one); why != "" {
			f.note("process %d is named %s and is not used: %s", pid, one.program(), why)
			continue
		}
		found = append(found, one)
	}
	return found
}

// distrust returns why a process does not count; empty if it does.
func (f *finder) distrust(p *process) string {
	uid, err := f.uid(p.pid)
	switch {
	case err != nil:
		return err.Error()
	case uid != f.owner:
		return fmt.Sprintf("it belongs to the user %d", uid)
	}
	if same, err := f.sameNamespace(p.pid, "pid"); err != nil || !same {
		return because(err, "it is in another PID namespace")
	}
	text, err := f.read(p.pid, "cgroup")
	if err != nil {
		return err.Error()
	}
	if owner, ok := kubelet.ParseCgroup(text, ""); ok {
		return "it belongs to pod " + owner.PodUID
	}
	if p.onHost, err = f.sameNamespace(p.pid, "mnt"); err != nil {
		return err.Error()
	}
	return ""
}

// because returns the text of an error, or what was found without one.
func because(err error, found string) string {
	if err != nil {
		return err.Error()
	}
	return found
}

// uid returns the real user of a process.
func (f *finder) uid(pid int) (uint32, error) {
	text, err := f.read(pid, "status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if values, ok := strings.CutPrefix(line, "Uid:"); ok {
			if fields := strings.Fields(values); len(fields) > 0 {
				uid, err := strconv.ParseUint(fields[0], 10, 32)
				return uint32(uid), err
			}
		}
	}
	return 0, fmt.Errorf("%s has no line Uid", filepath.Join(f.deps.Proc, strconv.Itoa(pid), "status"))
}

// sameNamespace reports whether a process has a namespace of process 1.
func (f *finder) sameNamespace(pid int, kind string) (bool, error) {
	of := func(pid int) (string, error) {
		return os.Readlink(filepath.Join(f.deps.Proc, strconv.Itoa(pid), "ns", kind))
	}
	first, err := of(1)
	if err != nil {
		return false, err
	}
	own, err := of(pid)
	return own == first, err
}

// read reads a file of a process.
func (f *finder) read(pid int, name string) (string, error) {
	file, err := os.Open(filepath.Join(f.deps.Proc, strconv.Itoa(pid), name))
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxStatus))
	return string(text), err
}

// ownerOf returns the user that owns a file.
func ownerOf(path string) (uint32, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return owner(info)
}

func owner(info fs.FileInfo) (uint32, error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("the owner of %s is not known", info.Name())
	}
	return stat.Uid, nil
}

// flag returns the last value of a flag that has one of the names. A name is given with its dashes: programs of Go's flag package accept
// one and two. Behind them _ is the same as -. An argument counts as a flag also where it is the value of the flag before it: no value of
// these programs' flags begins as one of the names.
func flag(args []string, names ...string) (value string, set bool) {
	for i, arg := range args {
		name, text, inSame := strings.Cut(arg, "=")
		if !slices.ContainsFunc(names, func(wanted string) bool {
			word := strings.TrimLeft(wanted, "-")
			rest, dashed := strings.CutPrefix(name, strings.TrimSuffix(wanted, word))
			return dashed && strings.ReplaceAll(rest, "_", "-") == word
		}) {
			continue
		}
		if !inSame && i+1 < len(args) {
			text = args[i+1]
		}
		value, set = text, true
	}
	return value, set
}
