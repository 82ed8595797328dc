package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml"
)

const (
	checkContainerd = "containerd"
	checkCRIO       = "CRI-O"
)

// containerdConfig is the part of a containerd configuration that concerns CDI; a field is nil if no file sets it.
type containerdConfig struct {
	version  int64
	enabled  *bool
	dirs     []string
	sources  []string
	dirsFrom string
	// runtime is the default runtime; programs are the programs of the runtimes, by name.
	runtime, runtimeFrom string
	programs             map[string]string
}

// runtime checks that the container runtime injects CDI devices, and from which directories.
func (c *checker) runtime(ctx context.Context) {
	if why := c.agentSays.withoutCDI(); why != "" {
		c.notChecked("container runtime", "%s", why)
		return
	}
	containerd, crio := c.containerd(ctx), c.crio()
	if !containerd && !crio {
		c.notChecked("container runtime", "no /etc/containerd/config.toml and no /etc/crio below %s; containerd 2 "+
			"and CRI-O inject CDI devices by default", orRoot(c.deps.HostRoot))
	}
}

// containerd checks containerd's configuration; it returns false if there is none.
func (c *checker) containerd(ctx context.Context) bool {
	const path = "/etc/containerd/config.toml"
	if found, err := exists(c.deps.HostRoot, path); err == nil && !found {
		return false
	}
	config := &containerdConfig{programs: map[string]string{}}
	if err := config.read(c.deps.HostRoot, path, 0); err != nil {
		if denied(err) {
			c.unknown(checkContainerd, "%s: %s", path, reason(err))
			return true
		}
		c.problem(checkContainerd, "RUNTIME_CONFIG_INVALID", "%v", err)
		return true
	}
	c.defaultRuntime(checkContainerd, config.runtime, config.programs[config.runtime], config.runtimeFrom)
	files := strings.Join(config.sources, ", ")
	switch {
	case config.enabled != nil && !*config.enabled:
		c.problem(checkContainerd, "RUNTIME_CDI_OFF", "enable_cdi is false in %s", files)
		return true
	case config.enabled == nil && config.version < 3:
		version, err := containerdVersion(ctx, filepath.Join(c.deps.ContainerdState, "containerd.sock"))
		if err != nil {
			c.unknown(checkContainerd, "%s does not set enable_cdi, and the version of containerd is unknown: %s; "+
				"containerd 2 injects CDI devices by default, containerd 1 does not", files, reason(err))
			return true
		}
		if strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
			c.problem(checkContainerd, "RUNTIME_CDI_OFF",
				"containerd %s does not inject CDI devices by default, and %s does not set "+
					"enable_cdi", version, files)
			return true
		}
	}
	if !c.reads(checkContainerd, config.dirs, config.dirsFrom) {
		return true
	}
	said := "by default"
	if config.enabled != nil {
		said = "enable_cdi is true"
	}
	c.ok(checkContainerd, "injects CDI devices (%s, %s)", said, files)
	return true
}

// reads reports whether Berth's spec is in one of the directories that the runtime reads; without dirs, these are the
// two default directories.
func (c *checker) reads(check string, dirs []string, from string) bool {
	if len(dirs) == 0 || c.berthSpecDir == "" {
		return true
	}
	wanted := "/" + strings.TrimPrefix(strings.TrimPrefix(c.berthSpecDir, strings.TrimSuffix(orRoot(c.deps.HostRoot), "/")), "/")
	for _, dir := range dirs {
		if sameDir(dir, wanted) {
			return true
		}
	}
	c.problem(check, "RUNTIME_CDI_DIRS", "Berth's spec is in %s; cdi_spec_dirs in %s are %s", wanted, from, strings.Join(dirs, ", "))
	return false
}

// sameDir compares two directories; it treats /var/run as a link to /run.
func sameDir(a, b string) bool {
	plain := func(dir string) string {
		dir = filepath.Clean(dir)
		if rest, ok := strings.CutPrefix(dir, "/var/run/"); ok {
			return "/run/" + rest
		}
		return dir
	}
	return plain(a) == plain(b)
}

// maxImports bounds the depth of imports of configuration files.
const maxImports = 5

// read reads a file and then the files that it imports; later values override earlier ones.
func (k *containerdConfig) read(root, path string, depth int) error {
	tree, err := readTOML(root, path)
	if err != nil {
		return err
	}
	k.sources = append(k.sources, path)
	if version, ok := tree.Get("version").(int64); ok && depth == 0 {
		k.version = version
	}
	for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
		section, ok := tree.GetPath([]string{"plugins", plugin}).(*toml.Tree)
		if !ok {
			continue
		}
		if on, ok := section.Get("enable_cdi").(bool); ok {
			k.enabled = &on
		}
		if dirs := texts(section.Get("cdi_spec_dirs")); len(dirs) > 0 {
			k.dirs, k.dirsFrom = dirs, path
		}
		if name, ok := section.GetPath([]string{"containerd", "default_runtime_name"}).(string); ok && name != "" {
			k.runtime, k.runtimeFrom = name, path
		}
		k.addPrograms(section)
	}
	if depth >= maxImports {
		return nil
	}
	for _, pattern := range texts(tree.Get("imports")) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		for _, imported := range hostGlob(root, pattern) {
			if slices.Contains(k.sources, imported) {
				continue
			}
			if err := k.read(root, imported, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// readTOML reads a TOML file of the host.
func readTOML(root, path string) (*toml.Tree, error) {
	full, err := beneath(root, path)
	if err != nil {
		return nil, err
	}
	blob, err := readFile(full)
	if err != nil {
		return nil, err
	}
	tree, err := toml.LoadBytes(blob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return tree, nil
}

// hostGlob lists the host's paths that match a pattern.
func hostGlob(root, pattern string) []string {
	full, err := beneath(root, pattern)
	if err != nil {
		return nil
	}
	var found []string
	for _, path := range glob(full) {
		rest := strings.TrimPrefix(path, strings.TrimSuffix(orRoot(root), "/"))
		found = append(found, filepath.Clean("/"+rest))
	}
	return found
}

// texts returns the strings of a TOML array.
func texts(value any) []string {
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

// crio checks CRI-O's configuration; it returns false if there is none. CRI-O injects CDI devices since 1.23, so only
// the directories can be wrong.
func (c *checker) crio() bool {
	files := hostGlob(c.deps.HostRoot, "/etc/crio/crio.conf")
	files = append(files, hostGlob(c.deps.HostRoot, "/etc/crio/crio.conf.d/*")...)
	if len(files) == 0 {
		return false
	}
	var dirs []string
	from, runtime, runtimeFrom, programs := "", "", "", map[string]string{}
	for _, path := range files {
		tree, err := readTOML(c.deps.HostRoot, path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			c.unknown(checkCRIO, "%s: %s", path, reason(err))
			return true
		case err != nil:
			c.problem(checkCRIO, "RUNTIME_CONFIG_INVALID", "%v", err)
			return true
		}
		if found := texts(tree.GetPath([]string{"crio", "runtime", "cdi_spec_dirs"})); len(found) > 0 {
			dirs, from = found, path
		}
		if name, ok := tree.GetPath([]string{"crio", "runtime", "default_runtime"}).(string); ok && name != "" {
			runtime, runtimeFrom = name, path
		}
		if runtimes, ok := tree.GetPath([]string{"crio", "runtime", "runtimes"}).(*toml.Tree); ok {
			for _, name := range runtimes.Keys() {
				if program, ok := runtimes.GetPath([]string{name, "runtime_path"}).(string); ok {
					programs[name] = program
				}
			}
		}
	}
	c.defaultRuntime(checkCRIO, runtime, programs[runtime], runtimeFrom)
	if c.reads(checkCRIO, dirs, from) {
		c.ok(checkCRIO, "injects CDI devices (%s)", some(files))
	}
	return true
}
