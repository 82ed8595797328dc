package hostconfig

import "testing"

// TestGenerated checks which file is to be edited where a distribution writes containerd's configuration.
func TestGenerated(t *testing.T) {
	const k3s, rke2 = "/var/lib/rancher/k3s/agent/etc/containerd/", "/var/lib/rancher/rke2/agent/etc/containerd/"
	tests := map[string]struct {
		path string
		text string
		want Generated
	}{
		"plain":                          {path: ContainerdPath},
		"MicroK8s":                       {path: "/var/snap/microk8s/9072/args/containerd.toml", want: Generated{"MicroK8s", "/var/snap/microk8s/9072/args/containerd-template.toml"}},
		"MicroK8s' template":             {path: "/var/snap/microk8s/9072/args/containerd-template.toml"},
		"k0s":                            {path: "/etc/k0s/containerd.toml", text: "# k0s_managed=true\n# x\n", want: Generated{"k0s", "/etc/k0s/containerd.d/*.toml"}},
		"k0s, of the administrator":      {path: "/etc/k0s/containerd.toml", text: "# x\n# k0s_managed=true\n"},
		"k3s, containerd 2":              {path: k3s + "config.toml", text: "version = 3\n", want: Generated{"k3s", k3s + "config-v3.toml.tmpl"}},
		"k3s, containerd 1.7":            {path: k3s + "config.toml", text: "version = 2\n", want: Generated{"k3s", k3s + "config.toml.tmpl"}},
		"RKE2":                           {path: rke2 + "config.toml", text: "version = 3\n", want: Generated{"RKE2", rke2 + "config-v3.toml.tmpl"}},
		"another directory of k3s' data": {path: "/data/agent/etc/containerd/config.toml", want: Generated{"k3s or RKE2", "/data/agent/etc/containerd/config.toml.tmpl"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := ReadContainerd(host(t, map[string]string{tc.path: tc.text}, nil), tc.path)
			if err != nil || config.Generated != tc.want {
				t.Errorf("got %+v, %v; want %+v", config.Generated, err, tc.want)
			}
		})
	}
}
