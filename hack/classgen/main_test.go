package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFileIsFresh compares the operator's file with the classes that berth prints.
func TestFileIsFresh(t *testing.T) {
	want, err := classes()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale; run make generate, or go generate ./hack/classgen", file)
	}
	if n := bytes.Count(got, []byte("kind: DeviceClass\n")); n < 50 {
		t.Errorf("%s has %d classes, want one for each MIG profile", file, n)
	}
}
