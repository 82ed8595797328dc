// Package hostconfig reads configuration files of the host's programs: of containerd and CRI-O.
//
// It guarantees that no path leaves the host's root, that nothing but a regular file is opened, and that no more than 4 MiB of a file is
// read. It writes nothing. It must not import anything of Berth.
package hostconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/pelletier/go-toml"
)

// maxFile is how much of one file is read at most.
const maxFile = 4 << 20

// ReadFile reads at most 4 MiB of a regular file; opening any other kind of file could block.
func ReadFile(path string) ([]byte, error) { return readRegular(path, os.Stat, os.OpenFile) }

// ReadBeneath is ReadFile of a path of the host. A link that is made while it reads leads out of the host's root neither.
func ReadBeneath(root, path string) ([]byte, error) {
	full, err := Beneath(root, path)
	if err != nil {
		return nil, err
	}
	if Root(root) == "/" {
		return ReadFile(full)
	}
	inside, err := filepath.Rel(root, full)
	if err != nil {
		return nil, err
	}
	opened, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return readRegular(inside, opened.Stat, opened.OpenFile)
}

// readRegular reads a file that is regular before it is opened and after: it can be replaced in between.
func readRegular(path string, stat func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File, error)) ([]byte, error) {
	info, err := stat(path)
	if err != nil {
		return nil, err
	}
	notRegular := &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	if !info.Mode().IsRegular() {
		return nil, notRegular
	}
	file, err := open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(notRegular, err)
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// Root returns the host's root directory; empty means that of this process.
func Root(root string) string {
	if root == "" {
		return "/"
	}
	return root
}

// Beneath converts a path of the host to a path of this process; links are resolved within the root.
func Beneath(root, path string) (string, error) {
	if Root(root) == "/" {
		return path, nil
	}
	return securejoin.SecureJoin(root, path)
}

// TOML reads a TOML file of the host.
func TOML(root, path string) (*toml.Tree, error) {
	blob, err := ReadBeneath(root, path)
	if err != nil {
		return nil, err
	}
	tree, err := toml.LoadBytes(blob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return tree, nil
}

// Glob lists the host's paths that match a pattern, sorted.
func Glob(root, pattern string) []string {
	full, err := Beneath(root, pattern)
	if err != nil {
		return nil
	}
	matches, err := filepath.Glob(full)
	if err != nil {
		return nil // The pattern is malformed.
	}
	slices.Sort(matches)
	var found []string
	for _, path := range matches {
		rest := strings.TrimPrefix(path, strings.TrimSuffix(Root(root), "/"))
		found = append(found, filepath.Clean("/"+rest))
	}
	return found
}

// Texts returns the strings of a TOML array.
func Texts(value any) []string {
	list, ok := value.([]any)
	if !ok {
		return nil
	}
	var out []string
	for _, one := range list {
		if text, ok := one.(string); ok {
			out = append(out, text)
		}
	}
	return out
}
