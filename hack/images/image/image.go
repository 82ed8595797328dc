// Package image makes container images of files of this machine, and keeps each as an OCI layout and as a tarball.
//
// It guarantees that the same files and the same [Spec] give an image with the same digest, and that a layout or a
// tarball on disk is complete: it replaces the one before with a rename. It must not import packages of Berth.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec is the content of an image with one layer.
type Spec struct {
	// Files maps paths in the image to paths on this machine. All files become executable and owned by root.
	Files map[string]string
	// Entrypoint, Cmd and Env are the image's defaults.
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User is the numeric user and group, such as 65532:65532; empty is root.
	User string
	// Labels are labels of the image's configuration.
	Labels map[string]string
	// Created is the time of the image and of its files; the zero time is the Unix epoch.
	Created time.Time
}

// Named is an image with its full reference, such as berth.dev/workload:sandbox.
type Named struct {
	Name  string
	Image v1.Image
}

// Make makes an image for this machine's architecture.
func Make(reference string, s Spec) (Named, error) {
	if _, err := name.ParseReference(reference, name.StrictValidation); err != nil {
		return Named{}, fmt.Errorf("make image: %w", err)
	}
	img, err := s.image()
	if err != nil {
		return Named{}, fmt.Errorf("make image %s: %w", reference, err)
	}
	return Named{Name: reference, Image: img}, nil
}

func (s Spec) image() (v1.Image, error) {
	if len(s.Files) == 0 || len(s.Entrypoint) == 0 {
		return nil, errors.New("at least one file and an entrypoint are needed")
	}
	created := s.Created.UTC()
	if s.Created.IsZero() {
		created = time.Unix(0, 0).UTC()
	}
	files, err := layer(s.Files, created)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	compressed, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: created}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: s.Entrypoint, Cmd: s.Cmd, User: s.User, Labels: s.Labels, WorkingDir: "/",
			Env: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/"}, s.Env...)},
	})
	if err != nil {
		return nil, fmt.Errorf("set configuration: %w", err)
	}
	return mutate.Append(img, mutate.Addendum{Layer: compressed, History: v1.History{Created: v1.Time{Time: created}}})
}

// layer returns a tarball of the files, of the directories that they are in, and of /tmp.
func layer(files map[string]string, modified time.Time) ([]byte, error) {
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	seen := map[string]bool{}
	directory := func(name string, mode int64) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: modified, Format: tar.FormatPAX})
	}
	if err := directory("tmp", 0o1777); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		clean := strings.TrimPrefix(path.Clean("/"+name), "/")
		parts := strings.Split(clean, "/")
		for i := 1; i < len(parts); i++ {
			if err := directory(strings.Join(parts[:i], "/"), 0o755); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Name: clean, Mode: 0o755, Size: int64(len(content)), ModTime: modified, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := t.Write(content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
