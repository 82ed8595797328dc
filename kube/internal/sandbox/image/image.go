// Package image builds and reads container images as OCI layout tarballs with one static binary and one layer. It
// replaces a registry and an image builder. The same input gives the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"sort"
	"strings"
	"time"
)

// Media types and annotations of the OCI image format.
const (
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"

	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// Spec is the content of an image.
type Spec struct {
	// Name is the full reference, for example berth.dev/workload:sandbox.
	Name string
	// Files maps paths in the image to paths on this machine. All files become executable and owned by root.
	Files map[string]string
	// Entrypoint, Cmd and Env are the image's defaults.
	Entrypoint []string
	Cmd        []string
	Env        []string
}

// Descriptor names a blob of an image.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Manifest lists the blobs of an image.
type Manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        Descriptor   `json:"config"`
	Layers        []Descriptor `json:"layers,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []Descriptor `json:"manifests"`
}

type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Env        []string `json:"Env,omitempty"`
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Cmd        []string `json:"Cmd,omitempty"`
		WorkingDir string   `json:"WorkingDir,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Write writes the image as an OCI layout tarball, as containerd, podman and skopeo import it.
func Write(w io.Writer, s Spec) error {
	if s.Name == "" || len(s.Files) == 0 || len(s.Entrypoint) == 0 {
		return errors.New("write image: a name, at least one file and an entrypoint are needed")
	}
	layer, err := layerTar(s.Files)
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	layerDesc := describe(mediaLayer, layer)
	cfg := config{Architecture: runtime.GOARCH, OS: "linux"}
	cfg.Config.Entrypoint, cfg.Config.Cmd, cfg.Config.WorkingDir = s.Entrypoint, s.Cmd, "/"
	cfg.Config.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/"}, s.Env...)
	// The layer is not compressed, so its digest is also the diff ID.
	cfg.RootFS.Type, cfg.RootFS.DiffIDs = "layers", []string{layerDesc.Digest}
	cfgData, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	manifest, err := json.Marshal(Manifest{SchemaVersion: 2, MediaType: mediaManifest,
		Config: describe(mediaConfig, cfgData), Layers: []Descriptor{layerDesc}})
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	top := describe(mediaManifest, manifest)
	top.Annotations = map[string]string{refName: s.Name, containerdName: s.Name}
	idx, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []Descriptor{top}})
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	t := tar.NewWriter(w)
	put := func(name string, data []byte) {
		if err == nil {
			err = t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch(), Format: tar.FormatPAX})
		}
		if err == nil {
			_, err = t.Write(data)
		}
	}
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	put("index.json", idx)
	for _, blob := range [][]byte{manifest, cfgData, layer} {
		put(blobPath(describe("", blob).Digest), blob)
	}
	if err := errors.Join(err, t.Close()); err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	return nil
}

// WriteFile writes the image to a file atomically.
func WriteFile(file string, s Spec) error {
	tmp := file + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	defer os.Remove(tmp)
	if err := errors.Join(Write(f, s), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("write image %s: %w", s.Name, err)
	}
	return nil
}

// epoch is the time of every file, so that equal content has an equal digest.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

func layerTar(files map[string]string) ([]byte, error) {
	var buf bytes.Buffer
	t := tar.NewWriter(&buf)
	seen := map[string]bool{}
	dir := func(name string, mode int64) error {
		if name == "." || seen[name] {
			return nil
		}
		seen[name] = true
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: epoch(), Format: tar.FormatPAX})
	}
	if err := dir("tmp", 0o1777); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		clean := strings.TrimPrefix(path.Clean("/"+name), "/")
		parts := strings.Split(clean, "/")
		for i := 1; i < len(parts); i++ {
			if err := dir(strings.Join(parts[:i], "/"), 0o755); err != nil {
				return nil, err
			}
		}
		if err := t.WriteHeader(&tar.Header{Name: clean, Mode: 0o755, Size: int64(len(data)), ModTime: epoch(),
			Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := t.Write(data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func describe(mediaType string, data []byte) Descriptor {
	sum := sha256.Sum256(data)
	return Descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
