package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Host are the files of this container. The zero value is the container itself.
type Host struct {
	// DevRoot is the folder that has dev, ProcRoot the one that has proc; empty means /.
	DevRoot  string
	ProcRoot string
}

var _ Files = Host{}

func (h Host) path(name string) string {
	if strings.HasPrefix(name, "/proc/") {
		return filepath.Join("/", h.ProcRoot, name)
	}
	return filepath.Join("/", h.DevRoot, name)
}

// Names lists a folder; a folder that does not exist is empty.
func (h Host) Names(folder string) ([]string, error) {
	entries, err := os.ReadDir(h.path(folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

func (h Host) Read(name string) (string, error) {
	text, err := os.ReadFile(h.path(name))
	return string(text), err
}

// Open opens a device node as the driver's libraries do: a capability for reading, other device nodes for reading and writing.
func (h Host) Open(name string) error {
	mode := unix.O_RDWR
	if strings.HasPrefix(name, capsFolder+"/") {
		mode = unix.O_RDONLY
	}
	return open(h.path(name), mode)
}

func open(path string, mode int) error {
	file, err := unix.Open(path, mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	_ = unix.Close(file) // it was only opened
	return nil
}

// OpenOther makes the device node in the folder of device nodes, which is writable also in a container with a read-only root.
func (h Host) OpenOther(like string, minor int) (made bool, err error) {
	var stat unix.Stat_t
	if err := unix.Stat(h.path(like), &stat); err != nil {
		return false, &fs.PathError{Op: "stat", Path: like, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return false, fmt.Errorf("%s is no device node", like)
	}
	name := h.path(fmt.Sprintf("%s/.berth-validate-%d-%d", deviceFolder, os.Getpid(), minor))
	number := int(unix.Mkdev(unix.Major(uint64(stat.Rdev)), uint32(minor)))
	if err := unix.Mknod(name, unix.S_IFCHR|0o600, number); err != nil {
		return false, &fs.PathError{Op: "mknod", Path: name, Err: err}
	}
	err = open(name, unix.O_RDWR)
	_ = os.Remove(name) // what stays leads nowhere else, and ends with the container
	return true, err
}

// Target is the file that symbolic links lead to.
func (h Host) Target(name string) (string, error) { return filepath.EvalSymlinks(name) }
