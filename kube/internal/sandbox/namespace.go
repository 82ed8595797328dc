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

// runMount is where a node's private /run is mounted; /var/run is a link to it.
const runMount = "/run"

// binds lists a node's own directories with their paths inside the node.
func binds(nodeDir string) [][2]string {
	return [][2]string{
		{filepath.Join(nodeDir, "kubelet"), "/var/lib/kubelet"},
		{filepath.Join(nodeDir, "cni", "state"), "/var/lib/cni"},
		{filepath.Join(nodeDir, "lib-berth"), "/var/lib/berth"},
		{filepath.Join(nodeDir, "etc-cdi"), "/etc/cdi"},
		{filepath.Join(nodeDir, "log"), "/var/log"},
		{filepath.Join(nodeDir, "run"), runMount},
	}
}

// makeNodeNamespace gives this thread its own mount namespace with the node's directories, and its simulated hardware at the path
// hardware. Its mounts are not visible on the host; within it mounts are shared, which the kubelet needs for mount propagation.
func makeNodeNamespace(nodeDir, hardware string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts := binds(nodeDir)
	if sim := filepath.Join(nodeDir, "sim"); isDir(sim) {
		mounts = append(mounts, [2]string{sim, hardware})
	}
	for _, b := range mounts {
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s to %s: %w", b[0], b[1], err)
		}
	}
	if err := mountBootID(filepath.Join(nodeDir, "config", "boot_id")); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// mountBootID mounts a file over the kernel's boot ID. A node that was not rebooted has none: its boot is the machine's.
func mountBootID(file string) error {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Mount(file, kernelBootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s to %s: %w", file, kernelBootID, err)
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
	// Threads of a process share their root and working directory, which prevents entering a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare filesystem attributes: %w", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace of pid %d: %w", pid, err)
	}
	return nil
}

// borrowed lists the directories that a node mounts over and that a machine without Kubernetes lacks. A directory
// created here contains a mark, so that the last sandbox that needs it removes it, whichever created it.
func borrowed() []string {
	return []string{"/var/lib/kubelet", "/var/lib/cni", "/var/lib/berth", "/etc/cdi"}
}

const borrowMark = ".made-by-berth-sandbox"

// lockBorrowed prevents a sandbox from removing a directory that another one is about to mount on. It locks a directory
// that always exists, so the lock leaves no file; the lock ends with the process at the latest.
func lockBorrowed(how int) (unlock func(), err error) {
	fd, err := unix.Open("/var/lib", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock /var/lib: %w", err)
	}
	if err := unix.Flock(fd, how); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock /var/lib: %w", err)
	}
	return func() { unix.Close(fd) }, nil
}

// borrowDirs creates the missing directories. Until release is called, no other sandbox removes them; after that, a
// mount must protect them.
func borrowDirs(dirs []string) (release func(), err error) {
	unlock, err := lockBorrowed(unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		err := os.Mkdir(d, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(d, borrowMark), nil, 0o644)
		}
		if err != nil {
			unlock()
			return nil, fmt.Errorf("make mount point: %w", err)
		}
	}
	return unlock, nil
}

// returnDirs removes borrowed directories that are empty and on which no process of the machine has a mount: removing a
// directory would also remove the mount of another sandbox.
func returnDirs(dirs []string) error {
	unlock, err := lockBorrowed(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	used := mountPointsInUse("/proc", dirs)
	var errs []error
	for _, d := range dirs {
		mark := filepath.Join(d, borrowMark)
		if _, err := os.Stat(mark); err != nil || slices.Contains(used, d) {
			continue
		}
		if err := os.Remove(mark); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Remove(d); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func mountPointsInUse(proc string, dirs []string) []string {
	tables, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "mountinfo"))
	var used []string
	for _, table := range tables {
		mounts, err := readMounts(table)
		if err != nil {
			continue // the process has ended
		}
		for _, m := range mounts {
			if slices.Contains(dirs, m.Mountpoint) && !slices.Contains(used, m.Mountpoint) {
				used = append(used, m.Mountpoint)
			}
		}
	}
	return used
}
