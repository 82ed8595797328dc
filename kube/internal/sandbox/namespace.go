package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// runMount is where a node's private /run is mounted; /var/run leads there.
const runMount = "/run"

// binds are a node's own directories and where the node has them.
func binds(nodeDir string) [][2]string {
	return [][2]string{
		{filepath.Join(nodeDir, "kubelet"), "/var/lib/kubelet"},
		{filepath.Join(nodeDir, "cni", "state"), "/var/lib/cni"},
		{filepath.Join(nodeDir, "etc-cdi"), "/etc/cdi"},
		{filepath.Join(nodeDir, "log"), "/var/log"},
		{filepath.Join(nodeDir, "run"), runMount},
	}
}

// makeNodeNamespace gives this thread a mount namespace of its own with the
// node's directories in place. Nothing mounted in it reaches the host, and
// within it mounts are shared, as kubelet needs for mount propagation.
func makeNodeNamespace(nodeDir string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, b := range binds(nodeDir) {
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s to %s: %w", b[0], b[1], err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// enterNamespace moves this thread into the mount namespace of a process.
func enterNamespace(pid int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open mount namespace of pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// Threads of a process share their root and working directory; a mount
	// namespace can only be entered without that.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare filesystem attributes: %w", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace of pid %d: %w", pid, err)
	}
	return nil
}

// borrowed are the directories that a node mounts over and that a machine
// without Kubernetes lacks.
func borrowed() []string { return []string{"/var/lib/kubelet", "/var/lib/cni", "/etc/cdi"} }

// withBorrowLock keeps two sandboxes from making and removing the same
// directory at the same time. It locks a directory that is always there, so
// the lock itself leaves no file.
func withBorrowLock(f func() error) error {
	fd, err := unix.Open("/var/lib", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("lock /var/lib: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock /var/lib: %w", err)
	}
	return f()
}

// borrowDirs makes the mount points that are missing, after telling note.
func borrowDirs(dirs []string, note func([]string) error) error {
	return withBorrowLock(func() error {
		var missing []string
		for _, d := range dirs {
			if _, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, d)
			}
		}
		if err := note(missing); err != nil {
			return err
		}
		for _, d := range missing {
			if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make mount point: %w", err)
			}
		}
		return nil
	})
}

// returnDirs removes borrowed directories that are empty and that no process
// on the machine has a mount on: removing a directory would take the mount of
// another sandbox away with it.
func returnDirs(dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	return withBorrowLock(func() error {
		used := mountPointsInUse("/proc", dirs)
		var errs []error
		for _, d := range dirs {
			if slices.Contains(used, d) {
				continue
			}
			err := os.Remove(d)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

func mountPointsInUse(proc string, dirs []string) []string {
	tables, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "mountinfo"))
	var used []string
	for _, table := range tables {
		mounts, err := readMounts(table)
		if err != nil {
			continue // the process ended meanwhile
		}
		for _, m := range mounts {
			if slices.Contains(dirs, m.point) && !slices.Contains(used, m.point) {
				used = append(used, m.point)
			}
		}
	}
	return used
}
