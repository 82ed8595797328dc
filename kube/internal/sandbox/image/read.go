package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Image is an image read from a tarball.
type Image struct {
	Name     string
	Target   Descriptor
	Manifest Manifest
	blobs    map[string][]byte
}

// Blob returns the content that a descriptor of the image refers to.
func (i *Image) Blob(d Descriptor) []byte { return i.blobs[d.Digest] }

// Blobs returns every blob of the image, the manifest last, so that a blob follows those that it refers to.
func (i *Image) Blobs() []Descriptor {
	return append(append([]Descriptor{i.Manifest.Config}, i.Manifest.Layers...), i.Target)
}

// ReadFile reads an OCI layout tarball with one image, and checks every blob against its digest.
func ReadFile(file string) (*Image, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	img, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", file, err)
	}
	return img, nil
}

// Read is ReadFile for an open tarball.
func Read(r io.Reader) (*Image, error) {
	files := map[string][]byte{}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
	if files["index.json"] == nil {
		return nil, errors.New("no index.json in it: not an OCI layout")
	}
	var idx index
	if err := json.Unmarshal(files["index.json"], &idx); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	if len(idx.Manifests) != 1 {
		return nil, fmt.Errorf("index.json: %d images, want 1", len(idx.Manifests))
	}
	img := &Image{Target: idx.Manifests[0], blobs: map[string][]byte{}}
	img.Name = img.Target.Annotations[containerdName]
	if img.Name == "" {
		img.Name = img.Target.Annotations[refName]
	}
	if img.Name == "" {
		return nil, errors.New("index.json: the image has no name")
	}
	if err := json.Unmarshal(files[blobPath(img.Target.Digest)], &img.Manifest); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	for _, d := range img.Blobs() {
		data, ok := files[blobPath(d.Digest)]
		if !ok {
			return nil, fmt.Errorf("blob %s is missing", d.Digest)
		}
		if got := describe("", data); got.Digest != d.Digest || got.Size != d.Size {
			return nil, fmt.Errorf("blob %s is damaged: it has %s and %d bytes, want %d", d.Digest, got.Digest, got.Size, d.Size)
		}
		img.blobs[d.Digest] = data
	}
	return img, nil
}
