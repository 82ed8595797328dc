package kubeletsync

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveGrants checks that the folders of grants are removed, and nothing else.
func TestRemoveGrants(t *testing.T) {
	dir := t.TempDir()
	if err := RemoveGrants(dir); err != nil {
		t.Errorf("without grants: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, GrantsFolder, "one"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := RemoveGrants(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, GrantsFolder, "one", "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := RemoveGrants(dir); err == nil {
		t.Error("a folder with content is removed")
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveGrants(filepath.Join(dir, "file")); err == nil {
		t.Error("a file instead of a state directory is no error")
	}
}
