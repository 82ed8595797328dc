package doctor

import (
	"os"
	"path/filepath"
	"strings"
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
		config := &containerdConfig{}
		if err := config.read(root, "/config.toml", 0); err == nil && len(config.sources) != 1 {
			t.Errorf("read %v of a directory with one file", config.sources)
		}
		for _, dir := range config.dirs {
			if !sameDir(dir, dir) || sameDir(dir, dir+"x") {
				t.Errorf("sameDir is wrong for %q", dir)
			}
		}
	})
}

func FuzzModuleVersion(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n"))
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version:  gcc 9.3.0\n"))
	f.Add([]byte("\n1.2"))
	f.Fuzz(func(t *testing.T, content []byte) {
		version := moduleVersion(content)
		first, _, _ := strings.Cut(string(content), "\n")
		if !strings.Contains(first, version) {
			t.Errorf("version %q is not in the first line %q", version, first)
		}
	})
}

func TestModuleVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n":                      "580.95.05",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version: 9.3.0\n": "470.57.02",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.1  Tue\n":                                                 "550.1",
		"\nGCC version: 9.3.0\n": "",
	} {
		if got := moduleVersion([]byte(text)); got != want {
			t.Errorf("moduleVersion(%q) = %q, want %q", text, got, want)
		}
	}
}
