package doctor

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// firstSystemd is the first version of systemd that applies device numbers even without a link in /dev/char.
const firstSystemd = 240

// charLinks reports missing links in /dev/char if they are needed.
func (c *checker) charLinks(missing string) {
	if why := c.agentSays.withoutCDI(); why != "" {
		c.problem(checkCharLinks, "DEV_CHAR_LINK_MISSING", "%s; %s", missing, why)
		return
	}
	if found, err := exists(c.deps.HostRoot, "/run/systemd/system"); err == nil && !found {
		c.notChecked(checkCharLinks, "not needed: the node does not run systemd")
		return
	}
	systemd := c.systemdVersion()
	runc, err := c.runcVersion()
	switch {
	case systemd > 0 && systemd < firstSystemd:
		c.problem(checkCharLinks, "DEV_CHAR_LINK_MISSING", "%s; systemd is of version %d", missing, systemd)
	case err != nil:
		c.notChecked(checkCharLinks, "%s; only runc 1.1.3 to 1.1.6 needs them, and the version of runc is unknown: %v", missing, err)
	case skipsDevices(runc):
		c.problem(checkCharLinks, "DEV_CHAR_LINK_MISSING", "%s; runc is of version %s", missing, runc)
	default:
		c.ok(checkCharLinks, "not needed: runc is of version %s", runc)
	}
}

// skipsDevices reports whether that version of runc omits devices without a link from the systemd unit: 1.1.3 to 1.1.6
// do.
func skipsDevices(version string) bool {
	rest, ok := strings.CutPrefix(version, "1.1.")
	digits := regexp.MustCompile(`^[0-9]+`).FindString(rest)
	patch, err := strconv.Atoi(digits)
	return ok && err == nil && patch >= 3 && patch <= 6
}

// systemdVersion derives the version from the names of systemd's libraries; it returns 0 if they do not contain it.
func (c *checker) systemdVersion() int {
	for _, pattern := range []string{"/usr/lib/systemd/libsystemd-shared-*.so",
		"/usr/lib/*/systemd/libsystemd-shared-*.so", "/lib/systemd/libsystemd-shared-*.so"} {
		for _, path := range hostconfig.Glob(c.deps.HostRoot, pattern) {
			if version, err := strconv.Atoi(regexp.MustCompile(`[0-9]+`).FindString(filepath.Base(path))); err == nil {
				return version
			}
		}
	}
	return 0
}

// runcVersion returns the version of the host's runc.
func (c *checker) runcVersion() (string, error) {
	read := c.deps.RuncVersion
	if read == nil {
		read = builtVersion
	}
	for _, path := range []string{"/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc"} {
		full, err := hostconfig.Beneath(c.deps.HostRoot, path)
		if err != nil {
			continue
		}
		if found, err := exists(c.deps.HostRoot, path); err != nil || !found {
			continue
		}
		version, err := read(full)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return version, nil
	}
	return "", errors.New("no runc in the usual folders")
}

// builtVersion reads the version of a program that Go's linker has set, without running the program.
func builtVersion(path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	for _, setting := range info.Settings {
		if setting.Key != "-ldflags" {
			continue
		}
		if found := regexp.MustCompile(`main\.version=v?([0-9]+\.[0-9]+\.[0-9]+)`).FindStringSubmatch(setting.Value); found != nil {
			return found[1], nil
		}
	}
	if version := strings.TrimPrefix(info.Main.Version, "v"); strings.HasPrefix(version, "1.") {
		return version, nil
	}
	return "", errors.New("the program does not contain its version")
}

// defaultRuntime reports when the vendor's runtime is the default one: it honours variables that every image can set.
func (c *checker) defaultRuntime(check, name, program, from string) {
	vendor, runtime := &c.deps.Vendor, &c.files().Runtime
	if runtime.Program == "" || !strings.Contains(filepath.Base(program), runtime.Program) && !(program == "" && strings.HasPrefix(name, runtime.Prefix)) {
		return
	}
	variable := strings.Join(vendor.VisibleDevices, ", ")
	if tree, err := hostconfig.TOML(c.deps.HostRoot, runtime.Config); err == nil {
		if accepts, ok := tree.Value(runtime.Refuses).(bool); ok && !accepts {
			c.ok(check, "the %s runtime (%s) is the default in %s, and honours %s in privileged containers only (%s)", vendor.Title, name,
				from, variable, runtime.Config)
			return
		}
	}
	c.problem(check, runtime.DefaultCode, "the default runtime in %s is %s: %s=all in any image opens every GPU", from, name, variable)
}
