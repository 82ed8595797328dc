// Package golden compares what a test got with a file that a person has looked at. With the flag -update, which the package adds to the
// tests that import it, the files are written: go test PACKAGE -update, then look at the difference.
//
// It imports nothing of Berth, so that tests of every group may use it; programs must not link it. The transcripts of datadriven are
// written by that library's own flag, -rewrite.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Update reports whether golden files are written instead of compared.
func Update() bool { return *update }

// File compares got with a file, whose path is relative to the folder of the test.
func File(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", path, diff)
	}
}
