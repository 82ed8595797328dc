package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFilesAreFresh compares the files with the classes that berth prints.
func TestFilesAreFresh(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]string{file: "kind: DeviceClass\n", names: "- "} {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want[name]) {
			t.Errorf("%s is stale; run make generate, or go generate ./hack/classgen", name)
		}
		if n := bytes.Count(got, []byte(line)); n < 50 {
			t.Errorf("%s has %d classes, want one for each MIG profile", name, n)
		}
	}
}
