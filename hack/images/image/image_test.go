package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const reference = "berth.dev/thing:v1"

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func spec(t *testing.T) Spec {
	t.Helper()
	return Spec{
		Entrypoint: []string{"/usr/bin/thing", "--fast"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, User: "65532:65532",
		Labels: map[string]string{"org.opencontainers.image.version": "v1"}, Created: time.Unix(1_700_000_000, 0),
		Files: map[string]string{"/usr/bin/thing": file(t, "binary"), "etc/thing.conf": file(t, "conf")},
	}
}

func made(t *testing.T, s Spec) Named {
	t.Helper()
	img, err := Make(reference, s)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func digest(t *testing.T, n Named) string {
	t.Helper()
	hash, err := n.Image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// TestMake reads the configuration and the files of an image.
func TestMake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "thing")
	if err := Save(dir, made(t, spec(t))); err != nil {
		t.Fatal(err)
	}
	saved, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	img := saved.Image
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{"entrypoint": cfg.Config.Entrypoint, "command": cfg.Config.Cmd, "user": cfg.Config.User, "os": cfg.OS,
		"labels": cfg.Config.Labels, "created": cfg.Created.Unix(), "environment": cfg.Config.Env, "layers": len(cfg.RootFS.DiffIDs)}
	want := map[string]any{"entrypoint": []string{"/usr/bin/thing", "--fast"}, "command": []string{"serve"}, "user": "65532:65532", "os": "linux",
		"labels": map[string]string{"org.opencontainers.image.version": "v1"}, "created": int64(1_700_000_000),
		"environment": []string{"PATH=/usr/local/bin:/usr/bin:/bin:/", "A=1"}, "layers": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}

	files := map[string]string{}
	content := mutate.Extract(img)
	defer content.Close()
	eachFile(t, content, func(h *tar.Header, blob []byte) {
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1_700_000_000 {
			t.Errorf("%s is of %d:%d at %v, want root and the time of the image", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		files[strings.TrimSuffix(h.Name, "/")] = h.FileInfo().Mode().String() + " " + string(blob)
	})
	wantFiles := map[string]string{"tmp": "dtrwxrwxrwx ", "etc": "drwxr-xr-x ", "etc/thing.conf": "-rwxr-xr-x conf", "usr": "drwxr-xr-x ",
		"usr/bin": "drwxr-xr-x ", "usr/bin/thing": "-rwxr-xr-x binary"}
	if diff := cmp.Diff(wantFiles, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestSameDigest checks that an image depends on nothing but the content of its files and its spec.
func TestSameDigest(t *testing.T) {
	first := digest(t, made(t, spec(t)))
	if again := digest(t, made(t, spec(t))); again != first {
		t.Errorf("two images of equal files have the digests %s and %s", first, again)
	}
	for name, change := range map[string]func(*Spec){
		"content": func(s *Spec) { s.Files["/usr/bin/thing"] = file(t, "other") },
		"label":   func(s *Spec) { s.Labels["org.opencontainers.image.version"] = "v2" },
		"user":    func(s *Spec) { s.User = "" },
		"time":    func(s *Spec) { s.Created = time.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t)
			change(&s)
			if got := digest(t, made(t, s)); got == first {
				t.Error("the digest is the same")
			}
		})
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reference string
		change    func(*Spec)
		want      string
	}{
		"no name":       {"", func(*Spec) {}, "could not parse reference"},
		"no tag":        {"berth.dev/thing", func(*Spec) {}, "could not parse reference: berth.dev/thing"},
		"no files":      {reference, func(s *Spec) { s.Files = nil }, "at least one file"},
		"no entrypoint": {reference, func(s *Spec) { s.Entrypoint = nil }, "an entrypoint"},
		"no such file":  {reference, func(s *Spec) { s.Files = map[string]string{"/x": "/does/not/exist"} }, "/does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t)
			tc.change(&s)
			if _, err := Make(tc.reference, s); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestSaveAndLoad checks that a layout has the image under its name, and that the next one replaces it.
func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images", "thing")
	first := made(t, spec(t))
	other := spec(t)
	other.Files["/more"] = file(t, "more")
	// As a process leaves it that was killed while it saved.
	if err := os.MkdirAll(filepath.Join(beside(dir), "layout", "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Named{first, first, made(t, other)} {
		if err := Save(dir, want); err != nil {
			t.Fatal(err)
		}
		got, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != reference || digest(t, got) != digest(t, want) {
			t.Errorf("loaded %s with %s, want %s with %s", got.Name, digest(t, got), reference, digest(t, want))
		}
		if blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*")); err != nil || len(blobs) != 3 {
			t.Errorf("the layout has %d blobs, want 3: nothing of the image before: %v", len(blobs), err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
		t.Errorf("left beside the layout: %v, %v", left, err)
	}
}

// TestSaveFails checks that the image before stays when the next one cannot be written.
func TestSaveFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "thing")
	first := made(t, spec(t))
	if err := Save(dir, first); err != nil {
		t.Fatal(err)
	}
	gone, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "thing")
	if err := Save(elsewhere, gone); err != nil {
		t.Fatal(err)
	}
	unreadable, err := Load(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, unreadable); err == nil {
		t.Error("saved an image whose layer is gone")
	}
	got, err := Load(dir)
	if err != nil || digest(t, got) != digest(t, first) {
		t.Errorf("the image before is not there any more: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
		t.Errorf("left beside the layout: %v", left)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"no layout":      {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "index.json")) }, "no such file"},
		"half an index":  {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, "index.json")) }, "unexpected end of JSON input"},
		"damaged blob":   {func(t *testing.T, dir string) { changeBlobs(t, dir, func(b []byte) { b[len(b)/2] ^= 1 }) }, ""},
		"blob is gone":   {func(t *testing.T, dir string) { removeBlobs(t, dir) }, "no such file"},
		"no name":        {func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "index.json"), containerdName, "other") }, "no annotation"},
		"several images": {func(t *testing.T, dir string) { addImage(t, dir) }, "2 images, want 1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "thing")
			if err := Save(dir, made(t, spec(t))); err != nil {
				t.Fatal(err)
			}
			tc.damage(t, dir)
			if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want an error with %q and the path", err, tc.want)
			}
		})
	}
}

// TestTarball reads the tarball as docker does and as an OCI layout, which containerd reads: both have the image.
func TestTarball(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "thing")
	want := made(t, spec(t))
	if err := Save(dir, want); err != nil {
		t.Fatal(err)
	}
	path := dir + ".tar"
	if err := WriteTarball(path, dir); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	docker, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	gotConfig, err := docker.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if wantConfig, err := want.Image.ConfigName(); err != nil || gotConfig != wantConfig {
		t.Errorf("docker reads the configuration %s, want %s: %v", gotConfig, wantConfig, err)
	}
	if err := validate.Image(docker); err != nil {
		t.Errorf("as docker reads it: %v", err)
	}
	unpacked := filepath.Join(t.TempDir(), "unpacked")
	unpack(t, path, unpacked)
	got, err := Load(unpacked)
	if err != nil || digest(t, got) != digest(t, want) {
		t.Errorf("the layout in the tarball: %v", err)
	}
	first := read(t, path)
	if err := WriteTarball(path, dir); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, read(t, path)) {
		t.Error("two tarballs of a layout differ")
	}
}
