package main

import (
	"bytes"
	"go/format"
	"os"
	"testing"
)

// TestGeneratedIsCurrent: a new go-nvml needs go generate.
func TestGeneratedIsCurrent(t *testing.T) {
	want, err := format.Source(generate())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../zz_generated.unsupported.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Error("zz_generated.unsupported.go is not what go generate writes; run: go generate ./internal/hardware/sim")
	}
}
