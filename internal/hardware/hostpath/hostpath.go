// Package hostpath resolves paths as the host's container runtime does: links are followed beneath the host's root,
// wherever this process has it mounted.
//
// It only reads, never leaves the host's root through a link, and imports nothing of Berth.
package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// View maps between the paths of this process and those of the host. Create it with New.
type View struct{ root string }

// New returns the view of a process that sees the host's "/" at root, such as "/host" in a DaemonSet; "" means "/".
func New(root string) View { return View{path.Clean("/" + root)} }

// ToHost converts a path of this process to the host's.
func (v View) ToHost(p string) string {
	p = path.Clean("/" + p)
	if rest, ok := strings.CutPrefix(p, v.root); v.root != "/" && ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return p
}

// Local converts a path of the host or of this process to one that this process can open. It does not follow links.
func (v View) Local(p string) string {
	p = path.Clean("/" + p)
	if v.root == "/" || p == v.root || strings.HasPrefix(p, v.root+"/") {
		return p
	}
	return path.Join(v.root, p)
}

// Resolve follows all links of a path as the host would, and returns a path of this process; it returns that of the
// unresolved path when the links cannot be followed.
func (v View) Resolve(p string) string {
	resolved, err := securejoin.SecureJoin(v.root, v.ToHost(p))
	if err != nil {
		return v.Local(p)
	}
	return resolved
}

// Missing returns why a mount of a host path would fail; "" when it would not.
func (v View) Missing(p string) string {
	if _, err := os.Lstat(v.Resolve(p)); err != nil {
		return reason(err)
	}
	return ""
}

// Executable reports whether the host can run the file.
func (v View) Executable(p string) bool {
	if p == "" {
		return false
	}
	info, err := os.Lstat(v.Resolve(p))
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// Directory reports whether the host has a directory of that path.
func (v View) Directory(p string) bool {
	if p == "" {
		return false
	}
	info, err := os.Lstat(v.Resolve(p))
	return err == nil && info.IsDir()
}

// Node describes a file that should be a device node.
type Node struct {
	// Char is false for a file that is not a character device; the other fields are zero then.
	Char  bool
	Major uint32
	Minor uint32
	Mode  fs.FileMode
	GID   uint32
}

// Device reads a device node. A path that this process has (the /dev of a privileged container) is used as it is;
// any other path is looked up beneath the host's root.
func (v View) Device(p string) (Node, error) {
	info, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Lstat(v.Resolve(p))
	}
	if err != nil {
		return Node{}, fmt.Errorf("%s: %s", p, reason(err))
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return Node{}, nil
	}
	return Node{
		Char:  true,
		Major: unix.Major(stat.Rdev),
		Minor: unix.Minor(stat.Rdev),
		Mode:  info.Mode().Perm(),
		GID:   stat.Gid,
	}, nil
}

func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
