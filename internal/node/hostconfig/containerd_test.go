package hostconfig

import "testing"

// TestContainerdAddress checks where the socket is found in each version of the format.
func TestContainerdAddress(t *testing.T) {
	const (
		v3     = "version = 3\n"
		v4     = "version = 4\n"
		imp    = "imports = ['i.toml']\n"
		legacy = "[grpc]\naddress = '/legacy'\n"
		plugin = "[plugins.'io.containerd.server.v1.grpc']\naddress = '/plugin'\n"
		// other is the plugin's section without an address.
		other = "[plugins.'io.containerd.server.v1.grpc']\nuid = 1\n"
	)
	tests := map[string]struct {
		// imported is the file that the first one imports.
		text     string
		imported string
		want     string
	}{
		"version 3":                      {text: v3 + legacy, want: "/legacy"},
		"no version":                     {text: legacy, want: "/legacy"},
		"version 4":                      {text: v4 + plugin, want: "/plugin"},
		"version 4, legacy":              {text: v4 + legacy},
		"version 4, both":                {text: v4 + legacy + plugin, want: "/plugin"},
		"both":                           {text: v3 + plugin + legacy, want: "/plugin"},
		"a section without an address":   {text: v3 + other + legacy},
		"none":                           {text: v4},
		"an import of version 4":         {text: v3 + imp + legacy, imported: v4 + plugin, want: "/plugin"},
		"an import of version 3":         {text: v4 + imp + plugin, imported: v3 + legacy, want: "/legacy"},
		"an import that does not set it": {text: v4 + imp + plugin, imported: v4 + other, want: "/plugin"},
		"another plugin's address":       {text: v4 + "[plugins.'io.containerd.server.v1.ttrpc']\naddress = '/x'\n"},
		"a section that is no table":     {text: v4 + "[plugins]\n'io.containerd.server.v1.grpc' = 1\n"},
		"an address that is no text":     {text: v4 + "[plugins.'io.containerd.server.v1.grpc']\naddress = 1\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := ReadContainerd(host(t, map[string]string{"/c/c.toml": tc.text, "/c/i.toml": tc.imported}, nil), "/c/c.toml")
			if err != nil || config.Address != tc.want {
				t.Errorf("address %q, %v; want %q", config.Address, err, tc.want)
			}
		})
	}
}
