package cdiedits

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"
)

// cache keeps the result of the search until one of the places that it searches changes.
type cache struct {
	key   string
	edits *specs.ContainerEdits
}

// find returns the driver's files and hooks, from the cache while it is valid. The result is shared: callers copy what they
// change.
func (s *Source) find(version string) (*specs.ContainerEdits, error) {
	places := s.searchedPlaces(version)
	if s.cache.edits != nil && s.cache.key == s.cacheKey(version, places, s.cache.edits) {
		return s.cache.edits, nil
	}
	before := s.cacheKey(version, places, nil)
	edits, err := s.search(version)
	if err != nil {
		s.cache = cache{}
		return nil, err
	}
	s.cache = cache{edits: edits}
	// It is unknown whether the search saw a change that happened while it ran: search again next time.
	if before == s.cacheKey(version, places, nil) {
		s.cache.key = s.cacheKey(version, places, edits)
	}
	return edits, nil
}

// search opens libraries and parses them, so a damaged one must not end the agent.
func (s *Source) search(version string) (edits *specs.ContainerEdits, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("search driver files in %s: nvcdi panicked: %v", s.deps.DriverRoot, r)
		}
	}()
	edits, err = s.deps.Search(version)
	if err != nil {
		return nil, fmt.Errorf("find the files of driver %s below %s (are they those of the loaded kernel module?): %w",
			version, s.deps.DriverRoot, err)
	}
	return edits, nil
}

// searchedPlaces returns the folders and files, below the driver root, whose change can change what nvcdi finds. The list is
// nvcdi's own search order.
func (s *Source) searchedPlaces(version string) []string {
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
	places := make([]string, 0, len(relative)+len(s.deps.LibraryPaths))
	for _, r := range relative {
		places = append(places, path.Join(s.host.ToHost(s.deps.DriverRoot), r))
	}
	return append(places, s.deps.LibraryPaths...)
}

func mountFolders(edits *specs.ContainerEdits) []string {
	var folders []string
	for _, m := range edits.Mounts {
		folders = append(folders, path.Dir(m.HostPath))
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// cacheKey changes when one of the places changes, or a folder in which something was found: the modification time of a
// folder changes with its entries.
func (s *Source) cacheKey(version string, places []string, found *specs.ContainerEdits) string {
	if found != nil {
		places = slices.Concat(places, mountFolders(found))
	}
	var key strings.Builder
	key.WriteString(version)
	for _, p := range places {
		if info, err := os.Lstat(s.host.Resolve(p)); err == nil {
			fmt.Fprintf(&key, "\n%s %d", p, info.ModTime().UnixNano())
		}
	}
	return key.String()
}
