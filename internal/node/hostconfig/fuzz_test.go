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
		"version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/x.sock'\n", "plugins = 1\n", "[plugins]\n'io.containerd.cri.v1.runtime' = []\n", "version = '3'\nimports = 5\n", "a = [1, 'b'",
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

// FuzzCRIOConfig checks that parsing any configuration of CRI-O returns a result or an error.
func FuzzCRIOConfig(f *testing.F) {
	for _, seed := range []string{
		"[crio.runtime]\ncdi_spec_dirs = ['/etc/cdi']\n", "[crio]\nrunroot = '/run/x'\nstorage_driver = 'vfs'\n", "crio = 1\n",
		"[crio.runtime]\ndefault_runtime = 1\n[crio.runtime.runtimes.runc]\nruntime_path = '/usr/bin/runc'\n", "a = [1, 'b'",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "crio.conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if config, err := ReadCRIO(root, "/crio.conf", "/none"); err == nil && len(config.Sources) != 1 {
			t.Errorf("read %v of a directory with one file", config.Sources)
		}
	})
}

// TestReadBeneath checks that nothing outside of the host's root is read, and no file that is not regular.
func TestReadBeneath(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for path, text := range map[string]string{outside: "secret", filepath.Join(root, "file"): "text"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"absolute": "/file", "out": outside, "up": "../../../../../.." + outside} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"/file": "text", "/absolute": "text", "/out": "", "/up": "", "/": "", "/../file": "text"} {
		got, err := ReadBeneath(root, name)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("ReadBeneath(%s) = %q, %v; want %q", name, got, err, want)
		}
	}
}
