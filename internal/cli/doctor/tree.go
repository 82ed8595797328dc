package doctor

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// names lists a directory, sorted.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	slices.Sort(list)
	return list, nil
}

// exists reports whether a path of the host exists.
func exists(root, path string) (bool, error) {
	full, err := hostconfig.Beneath(root, path)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(full)
	switch {
	case err == nil:
		return true, nil
	case os.IsNotExist(err):
		return false, nil
	}
	return false, err
}

// number is the device number of a character device.
type number struct {
	major uint32
	minor uint32
}

// characterDevice returns the numbers of a device node, or fs.ErrInvalid for a file that is not a character device.
func characterDevice(path string) (number, error) {
	info, err := os.Stat(path)
	if err != nil {
		return number{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return number{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrInvalid}
	}
	dev := uint64(stat.Rdev) // the type differs between architectures
	return number{unix.Major(dev), unix.Minor(dev)}, nil
}

// fields parses "Name: value" lines.
func fields(content []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			values[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return values
}

// glob is filepath.Glob without its error, which only a malformed pattern causes.
func glob(parts ...string) []string {
	found, err := filepath.Glob(filepath.Join(parts...))
	if err != nil {
		return nil
	}
	slices.Sort(found)
	return found
}
