package cdi

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// ofFeatures are the paths that the configuration adds to the edits of every container, which are not the driver's.
var ofFeatures = []string{"/dev/nvidia-fs", "/dev/gdrdrv", "/dev/infiniband/", "/dev/nvidia-caps-imex-channels/", "/run/udev", "/etc/cufile.json"}

// Fingerprint identifies what every container gets of the driver: its files and the device nodes that all GPUs share. It is the same
// whatever the configuration adds, whichever devices there are, and whichever release wrote the spec: hooks are not in it.
func (s *Spec) Fingerprint() string {
	var lines []string
	add := func(kind, path, rest string) {
		if !slices.ContainsFunc(ofFeatures, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
			lines = append(lines, kind+" "+path+" "+rest)
		}
	}
	for _, mount := range s.Common.Mounts {
		add("mount", mount.ContainerPath, mount.HostPath)
	}
	for _, node := range s.Common.Nodes {
		add("node", node.Path, "")
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}
