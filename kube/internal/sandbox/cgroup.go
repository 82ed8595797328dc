package sandbox

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
	"time"

	"golang.org/x/sys/unix"
)

// cgroupFS describes the mounts of the machine's cgroups: one per hierarchy with cgroup v1, a single one with v2.
type cgroupFS struct {
	v2    bool
	roots []string
	// beside is the v2 tree of a v1 machine: the sandbox creates nothing in it, but runc does.
	beside []string
}

// all returns the trees in which cgroups are searched and removed.
func (c *cgroupFS) all() []string { return append(slices.Clone(c.roots), c.beside...) }

// detectCgroups reads the mount table. Like the kubelet, it treats a machine with v1 controllers as a v1 machine, even
// if the v2 tree is mounted too.
func detectCgroups(table string) (*cgroupFS, error) {
	mounts, err := readMounts(table)
	if err != nil {
		return nil, err
	}
	var v1 []string
	v2 := ""
	for _, m := range mounts {
		switch {
		case m.FSType == "cgroup" && !slices.Contains(v1, m.Mountpoint):
			v1 = append(v1, m.Mountpoint)
		case m.FSType == "cgroup2" && v2 == "":
			v2 = m.Mountpoint
		}
	}
	switch {
	case len(v1) > 0:
		fs := &cgroupFS{roots: v1}
		if v2 != "" {
			fs.beside = []string{v2}
		}
		return fs, nil
	case v2 != "":
		return &cgroupFS{v2: true, roots: []string{v2}}, nil
	}
	return nil, errors.New("no cgroup filesystem is mounted")
}

// create creates the cgroup in every hierarchy, with the settings that the kubelet needs: CPUs and memory nodes with
// v1, all controllers with v2.
func (c *cgroupFS) create(path string) error {
	for _, root := range c.roots {
		at := root
		for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			if c.v2 {
				c.delegate(at)
			}
			parent := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create cgroup: %w", err)
			}
			if err := inheritCPUSet(parent, at); err != nil {
				return fmt.Errorf("create cgroup %s: %w", at, err)
			}
		}
	}
	return nil
}

// delegate enables every controller of a v2 cgroup for its children. It ignores controllers that cannot be delegated;
// the kubelet reports which one it needs.
func (c *cgroupFS) delegate(dir string) {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for name := range strings.FieldsSeq(string(have)) {
		os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
	}
}

// inheritCPUSet initializes a new v1 cpuset, which is empty and accepts no process.
func inheritCPUSet(parent, child string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(child, file))
		if err != nil || strings.TrimSpace(string(have)) != "" {
			continue // no cpuset hierarchy, v2, or already filled
		}
		from, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil || strings.TrimSpace(string(from)) == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(child, file), from, 0); err != nil {
			return err
		}
	}
	return nil
}

// tracking returns the hierarchy that is used to find processes. With v1 one hierarchy is enough; the others are not
// changed, so that the limits of the machine's user stay in force.
func (c *cgroupFS) tracking() string {
	for _, root := range c.roots {
		if filepath.Base(root) == "pids" {
			return root
		}
	}
	return c.roots[0]
}

// joinThread makes the next process that this thread forks start in the cgroup.
func (c *cgroupFS) joinThread(path string, attr *syscall.SysProcAttr) (leave func(), err error) {
	dir := filepath.Join(c.tracking(), path)
	if !c.v2 {
		err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0)
		if err != nil {
			return nil, fmt.Errorf("join cgroup: %w", err)
		}
		return func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("join cgroup %s: %w", dir, err)
	}
	attr.UseCgroupFD, attr.CgroupFD = true, fd
	return func() { unix.Close(fd) }, nil
}

// processes lists every process at or below the cgroup, in any hierarchy.
func (c *cgroupFS) processes(path string) []int {
	var pids []int
	for _, root := range c.all() {
		filepath.WalkDir(filepath.Join(root, path), func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // the cgroup is being removed
			}
			data, _ := os.ReadFile(filepath.Join(p, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 && pid != os.Getpid() {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// kill kills every process at or below the cgroup, and returns the processes that still exist after the timeout.
func (c *cgroupFS) kill(path string, timeout time.Duration) []int {
	deadline := time.Now().Add(timeout)
	for {
		pids := c.processes(path)
		if len(pids) == 0 || time.Now().After(deadline) {
			return pids
		}
		for _, pid := range pids {
			// The PID was just read from the sandbox's own cgroup, which a process leaves only when it ends.
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// remove removes the cgroup and everything below it, in every hierarchy.
func (c *cgroupFS) remove(path string) error {
	var errs []error
	for _, root := range c.all() {
		var dirs []string
		filepath.WalkDir(filepath.Join(root, path), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			errs = append(errs, removeBusy(dir))
		}
	}
	return errors.Join(errs...)
}

// removeBusy retries while the kernel still cleans up a process of the cgroup that has ended.
func removeBusy(dir string) error {
	var err error
	for range 100 {
		err = unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup %s: %w", dir, err)
}
