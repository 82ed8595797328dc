package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Annotations of an image in an OCI layout: the OCI specification's, and the one by which containerd names what it imports.
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// Save writes the image as an OCI layout into the directory dir, in place of the layout that is there.
func Save(dir string, n Named) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	work := beside(dir)
	defer os.RemoveAll(work)
	// One that a killed process left is removed too.
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	if err := save(filepath.Join(work, "layout"), n); err != nil {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	// A directory cannot be replaced by a rename, so the layout before is moved away first. An end of this process in between leaves none.
	if err := os.Rename(dir, filepath.Join(work, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	if err := os.Rename(filepath.Join(work, "layout"), dir); err != nil {
		return fmt.Errorf("save image %s: %w", n.Name, err)
	}
	return nil
}

// beside returns the path at which the content of path is written before it gets its name.
func beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

func save(dir string, n Named) error {
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return to.AppendImage(n.Image, layout.WithAnnotations(map[string]string{refName: n.Name, containerdName: n.Name}))
}

// Load reads the layout that [Save] wrote into dir. It checks the content against its digests.
func Load(dir string) (Named, error) {
	n, err := Open(dir)
	if err != nil {
		return Named{}, err
	}
	if err := validate.Image(n.Image); err != nil {
		return Named{}, fmt.Errorf("read image in %s: %w", dir, err)
	}
	return n, nil
}

// Open is Load without the check of the content: for an image that goes to a runtime, which makes the same check when it imports it.
// To uncompress Berth's images takes seconds.
func Open(dir string) (Named, error) {
	n, err := open(dir)
	if err != nil {
		return Named{}, fmt.Errorf("read image in %s: %w", dir, err)
	}
	return n, nil
}

func open(dir string) (Named, error) {
	from, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return Named{}, err
	}
	index, err := from.IndexManifest()
	if err != nil {
		return Named{}, err
	}
	if len(index.Manifests) != 1 {
		return Named{}, fmt.Errorf("the layout has %d images, want 1", len(index.Manifests))
	}
	name := index.Manifests[0].Annotations[containerdName]
	if name == "" {
		return Named{}, fmt.Errorf("the image has no annotation %s", containerdName)
	}
	img, err := from.Image(index.Manifests[0].Digest)
	if err != nil {
		return Named{}, err
	}
	return Named{Name: name, Image: img}, nil
}

// dockerEntry is what `docker load` reads beside the OCI layout, in manifest.json.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// WriteTarball writes the layout in dir as a tarball that `docker load`, `ctr image import` and `podman load` read. The
// image has the same digest in it as in the layout.
func WriteTarball(file, dir string) error {
	if err := writeTarball(file, dir); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func writeTarball(file, dir string) error {
	n, err := Load(dir)
	if err != nil {
		return err
	}
	manifest, err := n.Image.Manifest()
	if err != nil {
		return err
	}
	entry := dockerEntry{Config: blobPath(manifest.Config.Digest), RepoTags: []string{n.Name}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blobPath(layer.Digest))
	}
	docker, err := json.Marshal([]dockerEntry{entry})
	if err != nil {
		return err
	}
	out, err := os.Create(beside(file))
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	t := tar.NewWriter(out)
	err = errors.Join(writeFiles(t, dir), writeFile(t, "manifest.json", docker), t.Close(), out.Close())
	if err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

// writeFiles writes the regular files below dir, in the order of their names.
func writeFiles(t *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(t, filepath.ToSlash(name), content)
	})
}

func writeFile(t *tar.Writer, name string, content []byte) error {
	header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatPAX}
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}

func blobPath(digest v1.Hash) string {
	return strings.Join([]string{"blobs", digest.Algorithm, digest.Hex}, "/")
}
