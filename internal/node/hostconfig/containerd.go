package hostconfig

import (
	"fmt"
	"path/filepath"
	"slices"
)

// ContainerdPath is where containerd reads its configuration unless its command line names another file.
const ContainerdPath = "/etc/containerd/config.toml"

// Containerd is the part of a containerd configuration that concerns CDI and the default runtime.
type Containerd struct {
	// Version is that of the format.
	Version int64
	// State is the state directory and Address the socket, if a file sets them.
	State   string
	Address string
	// EnableCDI is nil if no file sets it.
	EnableCDI *bool
	// Dirs are the directories of CDI specs, if a file sets them: DirsFrom.
	Dirs     []string
	DirsFrom string
	// Sources are the files that were read.
	Sources []string
	// Generated says from what the first of them is made.
	Generated Generated
	// Runtime is the default runtime, which RuntimeFrom sets; Programs are the programs of the runtimes, by name.
	Runtime     string
	RuntimeFrom string
	Programs    map[string]string
}

// ReadContainerd reads a configuration file of containerd below the host's root, with the files that it imports. The error is
// fs.ErrNotExist when there is none.
func ReadContainerd(root, path string) (*Containerd, error) {
	config := &Containerd{Programs: map[string]string{}}
	err := config.read(root, path, 0)
	config.Generated = generated(root, path, config.Version)
	return config, err
}

const (
	// maxImports bounds the depth of imports of configuration files, and maxFiles how many files make one configuration.
	maxImports = 5
	maxFiles   = 256
)

// read reads a file and then the files that it imports; later values override earlier ones.
func (k *Containerd) read(root, path string, depth int) error {
	tree, err := TOML(root, path)
	if err != nil {
		return err
	}
	k.Sources = append(k.Sources, path)
	if version, ok := tree.Value("version").(int64); ok && depth == 0 {
		k.Version = version
	}
	setText(&k.State, tree, "state")
	k.addAddress(tree)
	for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
		k.addSection(tree.table("plugins", plugin), path)
	}
	if depth >= maxImports {
		return nil
	}
	for _, pattern := range Texts(tree.Value("imports")) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		for _, imported := range Glob(root, pattern) {
			if slices.Contains(k.Sources, imported) {
				continue
			}
			if len(k.Sources) >= maxFiles {
				return fmt.Errorf("%s imports more than %d files", k.Sources[0], maxFiles)
			}
			if err := k.read(root, imported, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAddress records the socket that a file sets. Since version 4 of the format it is a setting of a plugin. A file with the plugin's
// section, and one of version 4, does not set it elsewhere (serviceMigrate in containerd 2.4).
func (k *Containerd) addAddress(tree Table) {
	const byPlugin = 4
	plugin := []string{"plugins", "io.containerd.server.v1.grpc"}
	if version, _ := tree.Value("version").(int64); version < byPlugin && tree.Value(plugin...) == nil {
		setText(&k.Address, tree, "grpc", "address")
	}
	setText(&k.Address, tree, append(plugin, "address")...)
}

// addSection records what a section of containerd's configuration sets.
func (k *Containerd) addSection(section Table, path string) {
	if on, ok := section.Value("enable_cdi").(bool); ok {
		k.EnableCDI = &on
	}
	if dirs := Texts(section.Value("cdi_spec_dirs")); len(dirs) > 0 {
		k.Dirs, k.DirsFrom = dirs, path
	}
	if name, ok := section.Value("containerd", "default_runtime_name").(string); ok && name != "" {
		k.Runtime, k.RuntimeFrom = name, path
	}
	k.addPrograms(section)
}

// addPrograms records the programs of the runtimes in a section of containerd's configuration.
func (k *Containerd) addPrograms(section Table) {
	runtimes := section.table("containerd", "runtimes")
	for name := range runtimes {
		if program, ok := runtimes.Value(name, "options", "BinaryName").(string); ok {
			k.Programs[name] = program
		}
	}
}
