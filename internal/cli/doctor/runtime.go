package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
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
	switch c.deps.Runtime.Kind {
	case hostruntime.Containerd:
		c.containerd(ctx)
	case hostruntime.CRIO:
		c.crio()
	default:
		c.notChecked("container runtime", "no containerd and no CRI-O was found below %s: no process, no socket and no configuration; containerd 2 "+
			"and CRI-O inject CDI devices by default", hostconfig.Root(c.deps.HostRoot))
	}
}

// containerd checks containerd's configuration. Without one, its version decides.
func (c *checker) containerd(ctx context.Context) {
	path := c.deps.Runtime.Config.Path
	config, err := hostconfig.ReadContainerd(c.deps.HostRoot, path)
	switch {
	case err != nil && denied(err):
		c.unknown(checkContainerd, "%s: %s", path, reason(err))
		return
	case errors.Is(err, fs.ErrNotExist) && len(config.Sources) == 0:
		config.Sources = []string{"no " + path}
	case err != nil:
		c.problem(checkContainerd, "RUNTIME_CONFIG_INVALID", "%v", err)
		return
	}
	c.defaultRuntime(checkContainerd, config.Runtime, config.Programs[config.Runtime], config.RuntimeFrom)
	files := strings.Join(config.Sources, ", ")
	said := "by default"
	switch {
	case config.EnableCDI != nil && !*config.EnableCDI:
		c.problem(checkContainerd, "RUNTIME_CDI_OFF", "enable_cdi is false in %s", files)
		return
	case config.EnableCDI != nil:
		said = "enable_cdi is true"
	case config.Version < 3:
		_, version, err := hostruntime.Version(ctx, c.deps.RuntimeSocket)
		if err != nil {
			c.unknown(checkContainerd, "%s does not set enable_cdi, and the version of containerd is unknown: %v; "+
				"containerd 2 injects CDI devices by default, containerd 1 does not", files, err)
			return
		}
		if strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
			c.problem(checkContainerd, "RUNTIME_CDI_OFF", "containerd %s does not inject CDI devices by default, and %s does not set enable_cdi", version, files)
			return
		}
	}
	if c.reads(checkContainerd, config.Dirs, config.DirsFrom) {
		c.ok(checkContainerd, "injects CDI devices (%s, %s)", said, files)
	}
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

// crio checks CRI-O's configuration. CRI-O injects CDI devices since 1.23, so only the directories can be wrong.
func (c *checker) crio() {
	found := &c.deps.Runtime
	config, err := hostconfig.ReadCRIO(c.deps.HostRoot, found.Config.Path, found.ConfigDir.Path)
	switch {
	case err != nil && denied(err):
		c.unknown(checkCRIO, "%v", err)
		return
	case errors.Is(err, fs.ErrNotExist) && len(config.Sources) == 0:
		config.Sources = []string{"no " + found.Config.Path}
	case err != nil:
		c.problem(checkCRIO, "RUNTIME_CONFIG_INVALID", "%v", err)
		return
	}
	c.defaultRuntime(checkCRIO, config.Runtime, config.Programs[config.Runtime], config.RuntimeFrom)
	if c.reads(checkCRIO, config.Dirs, config.DirsFrom) {
		c.ok(checkCRIO, "injects CDI devices (%s)", phrase.Some(config.Sources, mostNames))
	}
}
