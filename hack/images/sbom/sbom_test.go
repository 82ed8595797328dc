package sbom

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
)

func bill(t *testing.T, files map[string]string) cyclonedx.BOM {
	t.Helper()
	s := Subject{Name: "berth-agent", Version: "v0.1.0", Files: files}
	content, err := Make(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Make(t.Context(), s)
	if err != nil || !bytes.Equal(content, again) {
		t.Errorf("two bills of the same files differ: %v", err)
	}
	var got cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(content), cyclonedx.BOMFileFormatJSON).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

func refs(b cyclonedx.BOM) []string {
	var all []string
	for _, c := range *b.Components {
		all = append(all, c.BOMRef)
	}
	return all
}

// TestProgram compares the bill of this test binary with what the go command recorded in it, which of a test are no modules.
func TestProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	build, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	got := bill(t, map[string]string{"/berth-agent": self})
	if c := got.Metadata.Component; c.Name != "berth-agent" || c.Version != "v0.1.0" {
		t.Errorf("the bill is of %s %s", c.Name, c.Version)
	}
	want := []string{"file:/berth-agent", "pkg:golang/stdlib@" + strings.TrimPrefix(build.GoVersion, "go")}
	for _, m := range build.Deps {
		want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	slices.Sort(want)
	if all := refs(got); !slices.Equal(all, want) {
		t.Errorf("components %v, want %v", all, want)
	}
}

// TestReplacedModule checks that a module replaced by another has the version of what was compiled, and one replaced by a
// directory its own.
func TestReplacedModule(t *testing.T) {
	got := modules(&debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1"}},
		{Path: "example.com/b", Version: "v0.0.0", Replace: &debug.Module{Path: "../b"}},
		{Path: "example.com/c", Version: "v0.0.0", Replace: &debug.Module{Path: "../", Version: "(devel)"}},
	}})
	var purls []string
	for _, c := range got {
		purls = append(purls, c.PackageURL)
	}
	want := []string{"pkg:golang/stdlib@1.26.8", "pkg:golang/example.com/fork@v1.0.1", "pkg:golang/example.com/b@v0.0.0",
		"pkg:golang/example.com/c@v0.0.0"}
	if !slices.Equal(purls, want) {
		t.Errorf("got %v, want %v", purls, want)
	}
}

// TestLibrary checks that a library of this machine has the package and the version that dpkg knows.
func TestLibrary(t *testing.T) {
	out, err := exec.Command("dpkg-query", "--show", "--showformat=${Version}", "libc6").Output()
	if err != nil {
		t.Skipf("skipped: this machine does not have the package libc6: %v", err)
	}
	found, err := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	if err != nil || len(found) != 1 {
		t.Skipf("skipped: no single libc.so.6: %v, %v", found, err)
	}
	all := bill(t, map[string]string{"/lib/libc.so.6": found[0]})
	components := *all.Components
	if len(components) != 2 || components[0].Name != "/lib/libc.so.6" || components[1].Name != "libc6" || components[1].Version != string(out) {
		t.Errorf("got %v, want the file and libc6 %s", refs(all), out)
	}
}

// TestUnknownFile checks that a file of no package is listed with its digest.
func TestUnknownFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	components := *bill(t, map[string]string{"/file": path}).Components
	if len(components) != 1 || (*components[0].Hashes)[0].Value != "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1" {
		t.Errorf("got %+v, want the file with its SHA-256", components)
	}
	if _, err := Make(t.Context(), Subject{Name: "x", Files: map[string]string{"/file": path + "-gone"}}); err == nil || !strings.Contains(err.Error(), "/file of image x") {
		t.Errorf("a missing file: %v", err)
	}
}
