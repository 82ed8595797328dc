package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	content := read(t, path)
	write(t, path, content[:len(content)/2])
}

func replace(t *testing.T, path, old, with string) {
	t.Helper()
	write(t, path, bytes.ReplaceAll(read(t, path), []byte(old), []byte(with)))
}

func blobs(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("blobs of %s: %v, %v", dir, paths, err)
	}
	return paths
}

func changeBlobs(t *testing.T, dir string, change func([]byte)) {
	t.Helper()
	for _, path := range blobs(t, dir) {
		content := read(t, path)
		change(content)
		write(t, path, content)
	}
}

func removeBlobs(t *testing.T, dir string) {
	t.Helper()
	for _, path := range blobs(t, dir) {
		remove(t, path)
	}
}

func addImage(t *testing.T, dir string) {
	t.Helper()
	img, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Path(dir).AppendImage(img); err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, from, dir string) {
	t.Helper()
	eachFile(t, bytes.NewReader(read(t, from)), func(h *tar.Header, content []byte) {
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, content)
	})
}

// eachFile calls f for each entry of a tarball.
func eachFile(t *testing.T, tarball io.Reader, f func(*tar.Header, []byte)) {
	t.Helper()
	for r := tar.NewReader(tarball); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f(h, content)
	}
}
