package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplacedLibrary: an upgrade of the driver moves the link to another file.
func TestReplacedLibrary(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "usr/lib64")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	point := func(version string) {
		t.Helper()
		link := filepath.Join(folder, libraryName)
		_ = os.Remove(link)
		if err := os.WriteFile(filepath.Join(folder, "libnvidia-ml.so."+version), []byte(version), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("libnvidia-ml.so."+version, link); err != nil {
			t.Fatal(err)
		}
	}
	l := &library{root: root}
	if _, replaced := l.Replaced(); replaced {
		t.Error("replaced before anything was found")
	}
	point("580.1")
	l.found = true
	l.opened, _ = identifyLibrary(root)
	if file, replaced := l.Replaced(); replaced {
		t.Errorf("replaced by %s, although nothing changed", file)
	}
	if err := os.Remove(filepath.Join(folder, libraryName)); err != nil {
		t.Fatal(err)
	}
	if file, replaced := l.Replaced(); replaced {
		t.Errorf("replaced by %s, although there is no library", file)
	}
	point("590.2")
	if file, replaced := l.Replaced(); !replaced || !strings.Contains(file, "libnvidia-ml.so.590.2") {
		t.Errorf("got %q, %v; want the file of 590.2", file, replaced)
	}
}
