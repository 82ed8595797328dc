package sandbox

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// readMounts reads the mount table of a process.
func readMounts(path string) ([]*mountinfo.Info, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table %s: %w", path, err)
	}
	return mounts, nil
}

func isBelow(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// mountsBelow lists the mount points at or below dir, deepest first.
func mountsBelow(mounts []*mountinfo.Info, dir string) []string {
	var points []string
	for _, m := range mounts {
		if isBelow(m.Mountpoint, dir) {
			points = append(points, m.Mountpoint)
		}
	}
	slices.SortFunc(points, func(a, b string) int { return strings.Compare(b, a) })
	return points
}

// identity derives the sandbox's name and cgroup from the directory alone, so that its cgroup is found even without a
// state file.
func identity(dir string) (id, cgroup string) {
	h := fnv.New32a()
	h.Write([]byte(dir))
	id = fmt.Sprintf("%08x", h.Sum32())
	return id, "/berth-sandbox-" + id
}

// Leftovers are the resources of a sandbox that still exist on the machine.
type Leftovers struct {
	Processes []int
	Mounts    []string
	Cgroups   []string
	Files     string
}

// Empty reports whether nothing is left.
func (l Leftovers) Empty() bool {
	return len(l.Processes) == 0 && len(l.Mounts) == 0 && len(l.Cgroups) == 0 && l.Files == ""
}

func (l Leftovers) String() string {
	var parts []string
	for _, pid := range l.Processes {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		parts = append(parts, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
	}
	for _, m := range l.Mounts {
		parts = append(parts, "mount "+m)
	}
	for _, c := range l.Cgroups {
		parts = append(parts, "cgroup "+c)
	}
	if l.Files != "" {
		parts = append(parts, "files in "+l.Files)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// FindLeftovers finds everything that a sandbox in dir may have left: by its cgroup, the mount tables, and its
// directory. It does not rely on a state file.
func FindLeftovers(dir string) (Leftovers, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Leftovers{}, fmt.Errorf("find leftovers: %w", err)
	}
	cgroups, err := detectCgroups("/proc/self/mountinfo")
	if err != nil {
		return Leftovers{}, fmt.Errorf("find leftovers: %w", err)
	}
	_, cgroup := identity(dir)
	var l Leftovers
	l.Processes = append(cgroups.processes(cgroup), namespaceMembers("/proc", dir)...)
	slices.Sort(l.Processes)
	l.Processes = slices.Compact(l.Processes)
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return l, fmt.Errorf("find leftovers: %w", err)
	}
	l.Mounts = mountsBelow(mounts, dir)
	for _, root := range cgroups.all() {
		if _, err := os.Stat(filepath.Join(root, cgroup)); err == nil {
			l.Cgroups = append(l.Cgroups, filepath.Join(root, cgroup))
		}
	}
	if _, err := os.Stat(dir); err == nil {
		l.Files = dir
	}
	return l, nil
}

// namespaceMembers finds the processes in a mount namespace of a node: those whose /run is a directory of the sandbox.
// This finds processes that have left the sandbox's cgroup.
func namespaceMembers(proc, dir string) []int { return nodeMembers(proc, dir, "") }

// nodeMembers is namespaceMembers for one node; "" means all.
func nodeMembers(proc, dir, node string) []int {
	entries, _ := os.ReadDir(proc)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		mounts, err := readMounts(filepath.Join(proc, e.Name(), "mountinfo"))
		if err != nil {
			continue // the process has ended
		}
		for _, m := range mounts {
			// The root field is relative to the file system: if the sandbox is on a file system mounted elsewhere, it
			// is a suffix of the path.
			if m.Mountpoint == runMount && strings.HasSuffix(m.Root, "/run") && strings.Contains(m.Root, "/nodes/") {
				head, name, _ := strings.Cut(strings.TrimSuffix(m.Root, "/run"), "/nodes/")
				if head != "" && (node == "" || name == node) && (head == dir || strings.HasSuffix(dir, head) && sameMount(dir, head)) {
					pids = append(pids, pid)
				}
				break
			}
		}
	}
	return pids
}

// sameMount reports whether head is dir as named from the root of the file system that contains dir.
func sameMount(dir, head string) bool {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	best := &mountinfo.Info{}
	for _, m := range mounts {
		if (m.Mountpoint == "/" || isBelow(dir, m.Mountpoint)) && len(m.Mountpoint) >= len(best.Mountpoint) {
			best = m
		}
	}
	rel := strings.TrimPrefix(dir, strings.TrimSuffix(best.Mountpoint, "/"))
	return filepath.Join(best.Root, rel) == head
}

// unmountAll detaches the mount points, which are sorted deepest first.
func unmountAll(points []string) error {
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}
