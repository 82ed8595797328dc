package image

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLoadChecksContent: Load refuses a layout with a changed layer, which Open returns.
func TestLoadChecksContent(t *testing.T) {
	n := made(t, spec(t))
	dir := filepath.Join(t.TempDir(), "layout")
	if err := Save(dir, n); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err != nil {
		t.Fatal(err)
	}
	layers, err := n.Image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, blobPath(hash))
	content, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(blob, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("Load returns an image with a changed layer")
	}
	if _, err := Open(dir); err != nil {
		t.Errorf("Open: %v", err)
	}
}
