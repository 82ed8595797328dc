package program

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sharedLibraries returns the paths of the loader and of all libraries that a program needs to start; none for a static
// program.
func sharedLibraries(program string) ([]string, error) {
	dirs, err := filepath.Glob("/lib/*-linux-gnu")
	if err != nil {
		return nil, err
	}
	dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	found := map[string]bool{}
	var paths []string
	for todo := []string{program}; len(todo) > 0; todo = todo[1:] {
		loader, names, err := dynamicNeeds(todo[0])
		if err != nil {
			return nil, err
		}
		if loader != "" && !found[filepath.Base(loader)] {
			found[filepath.Base(loader)] = true
			paths = append(paths, loader)
		}
		for _, name := range names {
			if found[name] {
				continue
			}
			found[name] = true
			path := ""
			for _, dir := range dirs {
				if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
					path = filepath.Join(dir, name)
					break
				}
			}
			if path == "" {
				return nil, fmt.Errorf("library %s, which %s needs, is not in %v", name, todo[0], dirs)
			}
			paths, todo = append(paths, path), append(todo, path)
		}
	}
	return paths, nil
}

// dynamicNeeds returns a file's loader and the names of the libraries that it is linked with.
func dynamicNeeds(path string) (loader string, names []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	for _, part := range f.Progs {
		if part.Type == elf.PT_INTERP {
			text, err := io.ReadAll(part.Open())
			if err != nil {
				return "", nil, fmt.Errorf("read the loader of %s: %w", path, err)
			}
			loader = strings.TrimRight(string(text), "\x00")
		}
	}
	names, err = f.ImportedLibraries()
	return loader, names, err
}
