package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepository checks the repository. It starts the program, so that the race detector does not slow down the type checker.
func TestRepository(t *testing.T) {
	// Go caches a result until a folder that the test itself has read changes.
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() != ".." && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "./hack/deadexports", ".", "kube", "hack/images")
	cmd.Dir = "../.."
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
