package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAgent builds the image from copies of the test binary, which serves as an ELF file.
func TestAgent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	loader, names, err := dynamicNeeds(self)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"berth-agent", "berth-cdi-hook"} {
		if _, err := Agent(bin); err == nil || !strings.Contains(err.Error(), filepath.Join(bin, name)+":") {
			t.Errorf("Agent of a folder without %s gave %v, want an error that names the first missing program", name, err)
		}
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	spec, err := Agent(bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/berth-agent", "/berth-cdi-hook"} {
		if spec.Files[path] != bin+path {
			t.Errorf("%s is %q, want %s", path, spec.Files[path], bin+path)
		}
	}
	if loader != "" && spec.Files[loader] != loader {
		t.Errorf("the loader %s is not in the image: %v", loader, spec.Files)
	}
	for _, name := range names {
		found := false
		for path := range spec.Files {
			found = found || filepath.Base(path) == name
		}
		if !found {
			t.Errorf("library %s is not in the image: %v", name, spec.Files)
		}
	}
}
