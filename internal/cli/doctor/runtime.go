package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

const (
	checkContainerd = "containerd"
	checkCRIO       = "CRI-O"
)

// runtime checks that the container runtime injects CDI devices, and from which directories.
func (c *checker) runtime(ctx context.Context) {
	if why := c.agentSays.withoutCDI(); why != "" {
		c.notChecked("container runtime", "%s", why)
		return
	}
	containerd, crio := c.containerd(ctx), c.crio()
	if !containerd && !crio {
		c.notChecked("container runtime", "no /etc/containerd/config.toml and no /etc/crio below %s; containerd 2 "+
			"and CRI-O inject CDI devices by default", hostconfig.Root(c.deps.HostRoot))
	}
}

// containerd checks containerd's configuration; it returns false if there is none.
func (c *checker) containerd(ctx context.Context) bool {
	const path = hostconfig.ContainerdPath
	if found, err := exists(c.deps.HostRoot, path); err == nil && !found {
		return false
	}
	config, err := hostconfig.ReadContainerd(c.deps.HostRoot)
	if err != nil {
		if denied(err) {
			c.unknown(checkContainerd, "%s: %s", path, reason(err))
			return true
		}
		c.problem(checkContainerd, "RUNTIME_CONFIG_INVALID", "%v", err)
		return true
	}
	c.defaultRuntime(checkContainerd, config.Runtime, config.Programs[config.Runtime], config.RuntimeFrom)
	files := strings.Join(config.Sources, ", ")
	switch {
	case config.EnableCDI != nil && !*config.EnableCDI:
		c.problem(checkContainerd, "RUNTIME_CDI_OFF", "enable_cdi is false in %s", files)
		return true
	case config.EnableCDI == nil && config.Version < 3:
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
	if !c.reads(checkContainerd, config.Dirs, config.DirsFrom) {
		return true
	}
	said := "by default"
	if config.EnableCDI != nil {
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
	wanted := "/" + strings.TrimPrefix(strings.TrimPrefix(c.berthSpecDir, strings.TrimSuffix(hostconfig.Root(c.deps.HostRoot), "/")), "/")
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

// crio checks CRI-O's configuration; it returns false if there is none. CRI-O injects CDI devices since 1.23, so only
// the directories can be wrong.
func (c *checker) crio() bool {
	files := hostconfig.Glob(c.deps.HostRoot, "/etc/crio/crio.conf")
	files = append(files, hostconfig.Glob(c.deps.HostRoot, "/etc/crio/crio.conf.d/*")...)
	if len(files) == 0 {
		return false
	}
	var dirs []string
	from, runtime, runtimeFrom, programs := "", "", "", map[string]string{}
	for _, path := range files {
		tree, err := hostconfig.TOML(c.deps.HostRoot, path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			c.unknown(checkCRIO, "%s: %s", path, reason(err))
			return true
		case err != nil:
			c.problem(checkCRIO, "RUNTIME_CONFIG_INVALID", "%v", err)
			return true
		}
		if found := hostconfig.Texts(tree.GetPath([]string{"crio", "runtime", "cdi_spec_dirs"})); len(found) > 0 {
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
