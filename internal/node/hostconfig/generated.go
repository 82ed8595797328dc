package hostconfig

import (
	"path/filepath"
	"strings"
)

// Generated says which distribution writes a configuration of containerd again each time it starts, and from where it takes what an
// administrator sets; zero for a configuration that is edited itself.
type Generated struct {
	By   string
	From string
}

// generated returns which distribution writes a configuration, by its path below the host's root, the version of its format and, for k0s, a
// line that k0s writes into it. The sources are run-containerd-with-args of MicroK8s, pkg/component/worker/containerd of k0s, and
// pkg/agent/containerd of k3s, which is in RKE2 too.
func generated(root, path string, version int64) Generated {
	dir, name := filepath.Split(path)
	switch {
	case strings.HasPrefix(path, "/var/snap/microk8s/") && name == "containerd.toml":
		return Generated{By: "MicroK8s", From: dir + "containerd-template.toml"}
	case path == "/etc/k0s/containerd.toml" && managedByK0s(root, path):
		return Generated{By: "k0s", From: "/etc/k0s/containerd.d/*.toml"}
	case strings.HasSuffix(path, "/agent/etc/containerd/config.toml"):
		template := "config.toml.tmpl"
		if version >= 3 {
			template = "config-v3.toml.tmpl"
		}
		return Generated{By: rancher(path), From: dir + template}
	}
	return Generated{}
}

// managedByK0s reports whether k0s writes the file: it leaves one alone that does not begin with its mark.
func managedByK0s(root, path string) bool {
	blob, err := ReadBeneath(root, path)
	first, _, _ := strings.Cut(string(blob), "\n")
	return err == nil && first == "# k0s_managed=true"
}

// rancher returns the distribution that has a directory of data. The directory can be elsewhere.
func rancher(path string) string {
	switch {
	case strings.HasPrefix(path, "/var/lib/rancher/k3s/"):
		return "k3s"
	case strings.HasPrefix(path, "/var/lib/rancher/rke2/"):
		return "RKE2"
	}
	return "k3s or RKE2"
}
