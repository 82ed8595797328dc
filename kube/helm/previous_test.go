package helm_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// previous has files of the last release, which a shallow clone and an archive of the sources lack.
const previous = "../../charts/testdata/previous"

// previousFile returns the path of a file of the last release, whose commit is in hack/previous-version; source is its path in the
// repository. Where Git has the commit, the file has to be equal.
func previousFile(t *testing.T, source string) string {
	t.Helper()
	commit, err := os.ReadFile("../../hack/previous-version")
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.TrimSpace(string(commit))
	path := filepath.Join(previous, filepath.Base(source))
	header := fmt.Sprintf("# Of the commit %s: go test -C kube/helm . -update\n", hash)
	shown, missing := exec.Command("git", "show", hash+":"+source).Output()
	want := append([]byte(header), shown...)
	if *update {
		if missing != nil {
			t.Fatalf("Git has no commit %s: %v", hash, missing)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, []byte(header)) || missing == nil && !bytes.Equal(text, want) {
		t.Fatalf("%s is not that of the commit %s: go test -C kube/helm . -update", path, hash)
	}
	return path
}

// TestReuseValues renders the chart as helm upgrade --reuse-values does: with the values.yaml of the last release in place of its own. A
// value that is new has to count there as in values.yaml: the template reads it with its default, such as (.Values.new).key | default 5.
func TestReuseValues(t *testing.T) {
	values := previousFile(t, "charts/berth/values.yaml")
	everything := previousFile(t, "charts/testdata/golden/everything.values.yaml")
	reused := filepath.Join(t.TempDir(), "berth")
	if err := os.CopyFS(reused, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(values)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(reused, "values.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, given := range map[string][]string{"defaults": nil, "everything": {everything}} {
		t.Run(name, func(t *testing.T) {
			got, err := templateOf(t, reused, release, given...)
			if err != nil {
				t.Fatalf("the chart does not render with the values of the last release: %v", err)
			}
			// Helm adds what the values of the last release lack.
			want, err := template(t, release, append([]string{values}, given...)...)
			if err != nil {
				t.Fatal(err)
			}
			if differs := newRendering(name, got).difference(t, newRendering("wanted", want)); differs != "" {
				t.Errorf("a value that the last release lacks has another default in a template than in values.yaml:\n%s", differs)
			}
		})
	}
}
