package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// programPlaces returns the directories of a driver root that may contain nvidia-cuda-mps-control.
func programPlaces() []string { return []string{"/usr/bin", "/usr/local/bin", "/bin", "/opt/bin"} }

// ExecRooted is the main function of the program that Deps.Program names when the driver is installed below another
// root than this process's. It executes the driver's program in that root, whose C library it needs, with the daemon's
// directories and /dev/shm as they are here. The arguments are ROOT PROGRAM ARGUMENT.... It returns only with an error.
func ExecRooted(args []string) error {
	if len(args) < 2 || !filepath.IsAbs(args[0]) || filepath.Base(args[1]) != args[1] {
		return fmt.Errorf("start program of the driver: the arguments are %q, want ROOT PROGRAM ARGUMENT...; the supervisor starts it; do not start it manually",
			args)
	}
	root, name := filepath.Clean(args[0]), args[1]
	program, err := findBelow(root, name)
	if err != nil {
		return err
	}
	// A mount namespace belongs to a thread, and only the thread that calls exec remains.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("start %s: make a mount namespace: %w", name, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("start %s: make mounts private: %w", name, err)
	}
	for _, dir := range []string{os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "/dev/shm"} {
		if dir == "" {
			continue
		}
		if err := makeBelow(root, dir); err != nil {
			return fmt.Errorf("start %s: make %s below %s, where it is shown to it: %w", name, dir, root, err)
		}
		if err := unix.Mount(dir, filepath.Join(root, dir), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("start %s: bind %s below %s: %w (the directory must be there on the host too: mount it in this container at the host's path)",
				name, dir, root, err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("start %s: make %s its root: %w", name, root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := syscall.Exec(program, slices.Concat([]string{program}, args[2:]), os.Environ()); err != nil {
		return fmt.Errorf("start %s: exec %s below %s: %w", name, program, root, err)
	}
	return nil
}

// makeBelow makes a directory below a root unless it is there.
func makeBelow(root, dir string) error {
	below, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer below.Close()
	return below.MkdirAll(strings.TrimPrefix(filepath.Clean(dir), "/"), 0o755)
}

// findBelow returns the path of a program relative to its root.
func findBelow(root, name string) (string, error) {
	below, err := os.OpenRoot(root)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	defer below.Close()
	var looked []error
	for _, place := range programPlaces() {
		path := filepath.Join(place, name)
		info, err := below.Lstat(path[1:])
		if err == nil && !info.IsDir() {
			return path, nil
		}
		looked = append(looked, fmt.Errorf("%s: %w", path, err))
	}
	return "", fmt.Errorf("find %s below %s: %w (it comes with the driver; is the driver installed there?)", name, root,
		errors.Join(looked...))
}
