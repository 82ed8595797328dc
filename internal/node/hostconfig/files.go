// Package hostconfig reads configuration files: those of the host's programs, containerd and CRI-O, and those that are mounted for the
// agent.
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
	"github.com/pelletier/go-toml/v2"
)

const (
	// maxFile is how much of one file is read at most.
	maxFile = 4 << 20
	// maxDepth is how many levels of directories are walked at most.
	maxDepth = 16
)

// ReadFile reads at most 4 MiB of a regular file; opening any other kind of file could block.
func ReadFile(path string) ([]byte, error) { return readRegular(path, os.Stat, os.OpenFile) }

// ReadIn is ReadFile of a file of a folder of this process. A link that leads out of the folder is an error.
func ReadIn(dir, name string) ([]byte, error) {
	opened, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return readRegular(name, opened.Stat, opened.OpenFile)
}

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
	return ReadIn(root, inside)
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

// Table is a table of a TOML file.
type Table map[string]any

// TOML reads a TOML file of the host.
func TOML(root, path string) (Table, error) {
	blob, err := ReadBeneath(root, path)
	if err != nil {
		return nil, err
	}
	table := Table{}
	err = toml.Unmarshal(blob, &table)
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := wrong.Position()
		return nil, fmt.Errorf("%s: (%d, %d): %w", path, line, column, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
}

// Value returns the value at a path of keys; nil when there is none.
func (t Table) Value(path ...string) any {
	if len(path) == 0 {
		return t
	}
	value := t[path[0]]
	if len(path) == 1 {
		return value
	}
	return table(value).Value(path[1:]...)
}

// table returns the table at a path of keys; nil when there is none.
func (t Table) table(path ...string) Table { return table(t.Value(path...)) }

func table(value any) Table {
	found, _ := value.(map[string]any)
	return found
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

// Walk calls visit for a directory of the host and for all that is in it and below, in lexical order, with paths of the host. A link is not
// followed, except one that is the directory. It returns an error for more than entries of them, which include the directories, and for
// too many levels.
func Walk(root, dir string, entries int, visit func(path string, entry fs.DirEntry) error) error {
	opened, err := openDir(root, dir)
	if err != nil {
		return err
	}
	defer opened.Close()
	seen := 0
	return fs.WalkDir(opened.FS(), ".", func(inside string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if seen++; seen > entries {
			return fmt.Errorf("%s has more than %d entries", dir, entries)
		}
		if strings.Count(inside, "/") >= maxDepth {
			return fmt.Errorf("%s has directories more than %d levels deep", dir, maxDepth)
		}
		return visit(filepath.Join(dir, inside), entry)
	})
}

// openDir opens a directory of the host. A link that is made at the same time does not lead out of the root of the host either.
func openDir(root, dir string) (*os.Root, error) {
	full, err := Beneath(root, dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(full); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: full, Err: errors.New("not a directory")}
	}
	if Root(root) == "/" {
		return os.OpenRoot(full)
	}
	inside, err := filepath.Rel(root, full)
	if err != nil {
		return nil, err
	}
	base, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	return base.OpenRoot(inside)
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
