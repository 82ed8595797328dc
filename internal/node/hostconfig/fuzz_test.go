package hostconfig

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzContainerdConfig checks that parsing any configuration returns a result or an error.
func FuzzContainerdConfig(f *testing.F) {
	for _, seed := range []string{
		"version = 3\n", "imports = ['a.toml', '*']\n",
		"version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\ncdi_spec_dirs = ['/etc/cdi']\n",
		"plugins = 1\n", "[plugins]\n'io.containerd.cri.v1.runtime' = []\n", "version = '3'\nimports = 5\n", "a = [1, 'b'",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "config.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config := &Containerd{Programs: map[string]string{}}
		if err := config.read(root, "/config.toml", 0); err == nil && len(config.Sources) != 1 {
			t.Errorf("read %v of a directory with one file", config.Sources)
		}
	})
}
