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

// cgroupFS is where the machine's cgroups are: one mount per hierarchy with
// cgroup v1, a single one with v2.
type cgroupFS struct {
	v2    bool
	roots []string
	// beside is the v2 tree of a v1 machine: nothing is made there by us, but
	// runc leaves its cgroups in it.
	beside []string
}

// all are the trees in which something can be found and removed.
func (c *cgroupFS) all() []string { return append(slices.Clone(c.roots), c.beside...) }

// detectCgroups reads the mount table. A machine with v1 controllers is a v1
// machine even where the v2 tree is mounted beside them, as kubelet sees it.
func detectCgroups(mountinfo string) (*cgroupFS, error) {
	mounts, err := readMounts(mountinfo)
	if err != nil {
		return nil, err
	}
	var v1 []string
	v2 := ""
	for _, m := range mounts {
		switch {
		case m.fsType == "cgroup" && !slices.Contains(v1, m.point):
			v1 = append(v1, m.point)
		case m.fsType == "cgroup2" && v2 == "":
			v2 = m.point
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

// create makes the cgroup in every hierarchy, with what kubelet needs in it:
// CPUs and memory nodes with v1, all controllers with v2.
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

// delegate hands every controller of a v2 cgroup to its children. One that
// cannot be handed on is left out; kubelet says which one it misses.
func (c *cgroupFS) delegate(dir string) {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for name := range strings.FieldsSeq(string(have)) {
		os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
	}
}

// inheritCPUSet fills a new v1 cpuset, which is empty and takes no process.
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

// tracking is the hierarchy by which processes are found again. With v1 one
// is enough, and the others are left as they are so that the limits the
// machine set for its user stay in force.
func (c *cgroupFS) tracking() string {
	for _, root := range c.roots {
		if filepath.Base(root) == "pids" {
			return root
		}
	}
	return c.roots[0]
}

// joinThread makes the process that this thread forks next start in the cgroup.
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
				return nil // a cgroup that is just going away
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

// kill ends every process at or below the cgroup. It returns those that are
// still there after the timeout.
func (c *cgroupFS) kill(path string, timeout time.Duration) []int {
	deadline := time.Now().Add(timeout)
	for {
		pids := c.processes(path)
		if len(pids) == 0 || time.Now().After(deadline) {
			return pids
		}
		for _, pid := range pids {
			// A PID read from our own cgroup a moment ago; the cgroup is only
			// left by dying.
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// remove takes the cgroup and everything below it away, in every hierarchy.
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

// removeBusy retries while the kernel still buries a dead process there.
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
