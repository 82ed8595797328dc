package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// hostView looks at paths as the host's container runtime will: links are followed
// beneath the host's root, wherever this process has it.
type hostView struct{ root string }

func newHostView(root string) hostView { return hostView{path.Clean("/" + root)} }

// toHost turns a path of this process into the host's.
func (h hostView) toHost(p string) string {
	p = path.Clean("/" + p)
	if rest, ok := strings.CutPrefix(p, h.root); h.root != "/" && ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return p
}

// local turns a path, of the host or of this process, into one that this process can
// open, links not followed.
func (h hostView) local(p string) string {
	p = path.Clean("/" + p)
	if h.root == "/" || p == h.root || strings.HasPrefix(p, h.root+"/") {
		return p
	}
	return path.Join(h.root, p)
}

// resolve follows all links of a path as the host would; the path unchanged when
// that cannot be done.
func (h hostView) resolve(p string) string {
	resolved, err := securejoin.SecureJoin(h.root, h.toHost(p))
	if err != nil {
		return h.local(p)
	}
	return resolved
}

// exists tells why a mount of a host path would fail; "" when it would not.
func (h hostView) exists(p string) string {
	if _, err := os.Lstat(h.resolve(p)); err != nil {
		return reason(err)
	}
	return ""
}

// executable tells whether the host could run the file.
func (h hostView) executable(p string) bool {
	if p == "" {
		return false
	}
	info, err := os.Lstat(h.resolve(p))
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// nodeInfo is what the file system says about a device node.
type nodeInfo struct {
	char         bool
	major, minor uint32
	mode         fs.FileMode
	gid          uint32
}

// lstat reads a device node. A path that this process has as it is, is taken as it is
// (the /dev of a privileged container), otherwise it is looked for below the host's root.
func (h hostView) lstat(p string) (nodeInfo, error) {
	info, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Lstat(h.resolve(p))
	}
	if err != nil {
		return nodeInfo{}, fmt.Errorf("%s: %s", p, reason(err))
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return nodeInfo{}, nil
	}
	return nodeInfo{
		char:  true,
		major: unix.Major(stat.Rdev),
		minor: unix.Minor(stat.Rdev),
		mode:  info.Mode().Perm(),
		gid:   stat.Gid,
	}, nil
}

func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}

// mounts keeps the mounts whose host path exists, each container path once, sorted
// by container path.
func (c *checker) mounts(found []*specs.Mount) []*specs.Mount {
	var mounts []*specs.Mount
	seen := map[string]bool{}
	for _, m := range found {
		if seen[m.ContainerPath] {
			continue
		}
		if why := c.host.exists(m.HostPath); why != "" {
			c.problem("CDI_PATH_MISSING", "driver file %s is left out of the CDI spec: %s", m.HostPath, why)
			continue
		}
		seen[m.ContainerPath] = true
		copied := *m
		copied.HostPath = c.host.toHost(m.HostPath)
		mounts = append(mounts, &copied)
	}
	sortMounts(mounts)
	return mounts
}

func sortMounts(mounts []*specs.Mount) {
	slices.SortFunc(mounts, func(a, b *specs.Mount) int { return cmp.Compare(a.ContainerPath, b.ContainerPath) })
}

// searchedPlaces are the folders and files, below the driver root, whose change can change
// what nvcdi finds. That list is nvcdi's own search order.
func (w *Writer) searchedPlaces(version string) []string {
	relative := []string{
		"etc/ld.so.cache",
		"etc/OpenCL/vendors", "etc/vulkan/icd.d", "etc/vulkan/implicit_layer.d",
		"lib/firmware/nvidia/" + version, "lib/firmware/updates/nvidia/" + version,
		"run/nvidia-fabricmanager", "run/nvidia-persistenced", "tmp/nvidia-mps",
		"usr/share/egl/egl_external_platform.d", "usr/share/glvnd/egl_vendor.d", "usr/share/nvidia",
		"usr/share/vulkan/icd.d", "usr/share/vulkan/implicit_layer.d",
		"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin",
	}
	for _, lib := range []string{
		"lib64", "usr/lib64",
		"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current",
		"lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu/nvidia/current",
	} {
		relative = append(relative, lib, lib+"/vdpau")
	}
	places := make([]string, 0, len(relative)+len(w.deps.LibraryPaths))
	for _, r := range relative {
		places = append(places, path.Join(w.host.toHost(w.deps.Roots.Driver), r))
	}
	return append(places, w.deps.LibraryPaths...)
}

func mountFolders(edits *specs.ContainerEdits) []string {
	var folders []string
	for _, m := range edits.Mounts {
		folders = append(folders, path.Dir(m.HostPath))
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// cacheKey changes when one of the places does, or a folder in which something was
// found: a folder's time changes with its entries.
func (w *Writer) cacheKey(version string, places []string, found *specs.ContainerEdits) string {
	if found != nil {
		places = slices.Concat(places, mountFolders(found))
	}
	var key strings.Builder
	key.WriteString(version)
	for _, p := range places {
		if info, err := os.Lstat(w.host.resolve(p)); err == nil {
			fmt.Fprintf(&key, "\n%s %d", p, info.ModTime().UnixNano())
		}
	}
	return key.String()
}
