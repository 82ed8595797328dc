package hostconfig

import (
	"errors"
	"io/fs"
)

// Where CRI-O reads its configuration unless its command line names other places: a file, then the files of a directory.
const (
	CRIOPath = "/etc/crio/crio.conf"
	CRIODir  = "/etc/crio/crio.conf.d"
)

// CRIO is the part of a configuration of CRI-O that concerns its places, CDI and the default runtime.
type CRIO struct {
	// Listen is the socket, RunRoot the directory of what runs and StorageDriver its driver, if a file sets them.
	Listen        string
	RunRoot       string
	StorageDriver string
	// Dirs are the directories of CDI specs, if a file sets them: DirsFrom.
	Dirs     []string
	DirsFrom string
	// Sources are the files that were read.
	Sources []string
	// Runtime is the default runtime, which RuntimeFrom sets; Programs are the programs of the runtimes, by name.
	Runtime     string
	RuntimeFrom string
	Programs    map[string]string
}

// ReadCRIO reads CRI-O's configuration below the host's root: the file, then the files in the directory and below it in lexical order, as
// UpdateFromPath in CRI-O's pkg/config. Later values override earlier ones. The error is fs.ErrNotExist when there is neither, and another
// one for what CRI-O cannot read, such as a link to a directory.
func ReadCRIO(root, file, dir string) (*CRIO, error) {
	config := &CRIO{Programs: map[string]string{}}
	dropIns, err := filesBelow(root, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return config, err
	}
	for _, path := range append([]string{file}, dropIns...) {
		tree, err := TOML(root, path)
		if path == file && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return config, err
		}
		config.add(tree, path)
	}
	if len(config.Sources) == 0 {
		return config, &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}
	}
	return config, nil
}

// filesBelow lists what is not a directory in a directory and below it, in lexical order.
func filesBelow(root, dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	var paths []string
	err := Walk(root, dir, maxFiles, func(path string, entry fs.DirEntry) error {
		if !entry.IsDir() {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// add records what a file sets.
func (k *CRIO) add(tree Table, path string) {
	k.Sources = append(k.Sources, path)
	setText(&k.Listen, tree, "crio", "api", "listen")
	setText(&k.RunRoot, tree, "crio", "runroot")
	setText(&k.StorageDriver, tree, "crio", "storage_driver")
	if found := Texts(tree.Value("crio", "runtime", "cdi_spec_dirs")); len(found) > 0 {
		k.Dirs, k.DirsFrom = found, path
	}
	if setText(&k.Runtime, tree, "crio", "runtime", "default_runtime") {
		k.RuntimeFrom = path
	}
	runtimes := tree.table("crio", "runtime", "runtimes")
	for name := range runtimes {
		if program, ok := runtimes.Value(name, "runtime_path").(string); ok {
			k.Programs[name] = program
		}
	}
}

// setText sets a field to the text at a path of a file, unless there is none or it is empty; it reports whether it did.
func setText(field *string, tree Table, path ...string) bool {
	text, ok := tree.Value(path...).(string)
	if !ok || text == "" {
		return false
	}
	*field = text
	return true
}
