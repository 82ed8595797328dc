package program

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/version"
)

// TestMain makes the test binary a program of Berth where it is run under a program's name.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "berth") {
		if os.Getenv("OLD") == name {
			fmt.Println(name, "v0.0.1 (commit 1234, go1.26.8)")
		} else {
			fmt.Println(name, version.Current())
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bin returns a directory with the programs of all images.
func bin(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range All() {
		for name := range maps.Values(p.Files) {
			if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// TestSpec checks what is in each image: its programs, and of this machine only the libraries that these need.
func TestSpec(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := bin(t)
	for _, p := range All() {
		t.Run(p.Name, func(t *testing.T) {
			spec, err := p.Spec(dir)
			if err != nil {
				t.Fatal(err)
			}
			loader, libraries, err := dynamicNeeds(filepath.Join(dir, p.Name))
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Collect(maps.Values(p.Files))
			for _, needed := range append(libraries, loader) {
				if needed != "" {
					want = append(want, filepath.Base(needed))
				}
			}
			var got []string
			for path := range spec.Files {
				got = append(got, filepath.Base(path))
			}
			slices.Sort(got)
			slices.Sort(want)
			// The libraries' own needs are among those of the program.
			if want = slices.Compact(want); !slices.Equal(got, want) {
				t.Errorf("files %v, want %v", got, want)
			}
			if spec.Created.Unix() != 1_700_000_000 || !slices.Equal(spec.Entrypoint, []string{"/" + p.Name}) {
				t.Errorf("made at %v with entrypoint %v", spec.Created, spec.Entrypoint)
			}
			if root := spec.User == ""; root != (p.Name == "berth-agent") {
				t.Errorf("user %q: every program but the agent runs as another user than root", spec.User)
			}
			build := version.Current()
			for label, want := range map[string]string{"org.opencontainers.image.version": build.Version, "org.opencontainers.image.revision": build.Commit,
				"org.opencontainers.image.title": p.Name} {
				if spec.Labels[label] != want {
					t.Errorf("label %s is %q, want %q", label, spec.Labels[label], want)
				}
			}
			if err := p.CheckVersion(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestProgramIsMissing checks the error for each program that is not built.
func TestProgramIsMissing(t *testing.T) {
	for _, p := range All() {
		for name := range maps.Values(p.Files) {
			dir := bin(t)
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Spec(dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
				t.Errorf("image of %s without %s: %v, want an error with its path", p.Name, name, err)
			}
		}
	}
}

// TestOtherVersion checks that no label has a version that a program of its image does not print.
func TestOtherVersion(t *testing.T) {
	dir := bin(t)
	for name := range maps.Values(Agent().Files) {
		t.Setenv("OLD", name)
		if err := Agent().CheckVersion(t.Context(), dir); err == nil || !strings.Contains(err.Error(), name+` is "`+name+" v0.0.1") {
			t.Errorf("with an old %s: %v, want an error with its version", name, err)
		}
	}
}

func TestSourceDate(t *testing.T) {
	for _, bad := range []string{"yesterday", "-1", "1.5", "99999999999999999999"} {
		if got, err := sourceDate(bad); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
			t.Errorf("sourceDate(%q) = %v, %v, want an error", bad, got, err)
		}
	}
	if got, err := sourceDate(""); err != nil || !got.IsZero() {
		t.Errorf("without a date: %v, %v, want the zero time", got, err)
	}
}
