package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func spec(t *testing.T) Spec {
	return Spec{
		Name: "berth.dev/thing:v1", Entrypoint: []string{"/usr/bin/thing", "--fast"}, Cmd: []string{"serve"}, Env: []string{"A=1"},
		Files: map[string]string{"/usr/bin/thing": program(t, "binary"), "etc/thing.conf": program(t, "conf")},
	}
}

func tarball(t *testing.T, s Spec) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := Write(&buf, s); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestWriteAndRead(t *testing.T) {
	img, err := Read(bytes.NewReader(tarball(t, spec(t))))
	if err != nil {
		t.Fatal(err)
	}
	if img.Name != "berth.dev/thing:v1" {
		t.Errorf("name: want berth.dev/thing:v1, got %q", img.Name)
	}
	var cfg config
	if err := json.Unmarshal(img.Blob(img.Manifest.Config), &cfg); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/usr/bin/thing", "--fast"}, cfg.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
	if len(img.Manifest.Layers) != 1 || cfg.RootFS.DiffIDs[0] != img.Manifest.Layers[0].Digest {
		t.Errorf("the layer is not compressed, so its digest is its diff ID: %v, %v", img.Manifest.Layers, cfg.RootFS.DiffIDs)
	}

	want := map[string]string{"tmp/": "1777", "etc/": "755", "etc/thing.conf": "conf", "usr/": "755",
		"usr/bin/": "755", "usr/bin/thing": "binary"}
	got := map[string]string{}
	layer := tar.NewReader(bytes.NewReader(img.Blob(img.Manifest.Layers[0])))
	for {
		h, err := layer.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			got[h.Name] = strings.TrimLeft(octal(h.Mode), "0")
			continue
		}
		data, _ := io.ReadAll(layer)
		got[h.Name] = string(data)
		if h.Mode != 0o755 {
			t.Errorf("%s: want mode 755, got %s", h.Name, octal(h.Mode))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func octal(mode int64) string {
	return string([]byte{byte('0' + mode>>9&7), byte('0' + mode>>6&7), byte('0' + mode>>3&7), byte('0' + mode&7)})
}

func TestSameInputSameBytes(t *testing.T) {
	if !bytes.Equal(tarball(t, spec(t)), tarball(t, spec(t))) {
		t.Error("two images of the same files differ")
	}
}

func TestManifestIsTheLastBlob(t *testing.T) {
	img, err := Read(bytes.NewReader(tarball(t, spec(t))))
	if err != nil {
		t.Fatal(err)
	}
	blobs := img.Blobs()
	if len(blobs) != 3 || blobs[2].Digest != img.Target.Digest {
		t.Errorf("want config, layer and last the manifest, got %v", blobs)
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"no name":       func(s *Spec) { s.Name = "" },
		"no files":      func(s *Spec) { s.Files = nil },
		"no entrypoint": func(s *Spec) { s.Entrypoint = nil },
		"no such file":  func(s *Spec) { s.Files = map[string]string{"/x": "/does/not/exist"} },
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t)
			change(&s)
			if err := Write(io.Discard, s); err == nil {
				t.Error("want an error")
			}
		})
	}
}

func TestWriteFileLeavesNoHalfFile(t *testing.T) {
	dir := t.TempDir()
	s := spec(t)
	s.Files["/x"] = "/does/not/exist"
	if err := WriteFile(filepath.Join(dir, "image.tar"), s); err == nil {
		t.Error("want an error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReadRefuses(t *testing.T) {
	whole := tarball(t, spec(t))
	damaged := bytes.Replace(whole, []byte("binary"), []byte("bin4ry"), 1)
	var empty bytes.Buffer
	if err := tar.NewWriter(&empty).Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"damaged blob": {damaged, "damaged"},
		"cut off":      {whole[:len(whole)/2], "unexpected EOF"},
		"not a layout": {empty.Bytes(), "not an OCI layout"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(bytes.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want an error with %q, got %v", c.want, err)
			}
		})
	}
}
