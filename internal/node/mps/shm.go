package mps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// leastShm is the size of the tmpfs, in bytes, when the machine's memory is unknown.
const leastShm = 64 << 20

// mountShm mounts a tmpfs of half the machine's memory on dir unless one is mounted. It returns false without an error
// when this process may not mount.
func mountShm(dir string) (bool, error) {
	if mounted(dir) {
		return true, nil
	}
	options := fmt.Sprintf("mode=1777,size=%d", shmSize())
	err := unix.Mount("berth-mps-shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, options)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return true, nil
}

func unmountShm(dir string) error {
	for mounted(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

// mounted reports whether dir is a mount point.
func mounted(dir string) bool {
	var own, parent unix.Stat_t
	return unix.Lstat(dir, &own) == nil && unix.Lstat(filepath.Dir(dir), &parent) == nil && own.Dev != parent.Dev
}

func shmSize() uint64 {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return leastShm
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(fields[1], 10, 44); err == nil && kib > 0 {
				return kib << 10 / 2
			}
		}
	}
	return leastShm
}

// shareLabel is the SELinux type of files that containers may use.
const shareLabel = "system_u:object_r:container_file_t:s0"

// label lets the clients' containers use a directory on a host that enforces SELinux. It does nothing where files have
// no labels.
func label(dir string) error {
	const name = "security.selinux"
	if _, err := unix.Lgetxattr(dir, name, nil); err != nil {
		return nil
	}
	if err := unix.Lsetxattr(dir, name, []byte(shareLabel+"\x00"), 0); err != nil {
		return fmt.Errorf("label %s as %s: %w", dir, shareLabel, err)
	}
	return nil
}

// ExecDaemon is the main function of the program that Deps.Shim names. It creates a mount namespace in which SHM is
// /dev/shm and executes the control daemon in it. The arguments are SHM -- PROGRAM ARGUMENT.... It returns only with an
// error.
func ExecDaemon(args []string) error {
	if len(args) < 3 || args[1] != "--" {
		return fmt.Errorf("start MPS daemon: the arguments are %q, want SHM -- PROGRAM ARGUMENT...; the supervisor starts it; do not start it manually",
			args)
	}
	program, err := exec.LookPath(args[2])
	if err != nil {
		return fmt.Errorf("start MPS daemon: %w", err)
	}
	// A mount namespace belongs to a thread, and only the thread that calls exec remains.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("start MPS daemon: make a mount namespace: %w", err)
	}
	// A slave mount receives the host's unmounts, so that the daemon does not keep unmounted file systems alive.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("start MPS daemon: make mounts private: %w", err)
	}
	if err := unix.Mount(args[0], "/dev/shm", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("start MPS daemon: mount %s on /dev/shm: %w", args[0], err)
	}
	if err := syscall.Exec(program, args[2:], os.Environ()); err != nil {
		return fmt.Errorf("start MPS daemon: exec %s: %w", program, err)
	}
	return nil
}
