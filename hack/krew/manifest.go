package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// plugin is the name after kubectl; program is that of the file.
const (
	plugin  = "berth"
	program = "kubectl-berth"
)

// Manifest is a plugin of krew, with the fields that Berth's has: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
type Manifest struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	Spec            Spec     `json:"spec"`
}

// Metadata names the plugin.
type Metadata struct {
	Name string `json:"name"`
}

// Spec describes the plugin.
type Spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Caveats          string     `json:"caveats"`
	Platforms        []Platform `json:"platforms"`
}

// Platform is the archive of one platform.
type Platform struct {
	Selector metav1.LabelSelector `json:"selector"`
	URI      string               `json:"uri"`
	SHA256   string               `json:"sha256"`
	Bin      string               `json:"bin"`
}

// manifest returns the manifest of a version, without a platform.
func manifest(version string) *Manifest {
	return &Manifest{
		TypeMeta: metav1.TypeMeta{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin"},
		Metadata: Metadata{Name: plugin},
		Spec: Spec{
			Version: version, Homepage: "https://github.com/berth-gpu/berth", ShortDescription: "Show which GPUs a pod has and who holds each GPU",
			Description: `Show which GPUs a pod was allocated, who holds each GPU, why a pod waits, and
what is wrong with a node. Each fact comes with the place where it was read.
It reads the objects of the API server; those about GPUs are Berth's.
`,
			Caveats: `To complete names in your shell, save the output of
"kubectl berth completion kubectl" as kubectl_complete-berth in a directory of
PATH, and make it executable.
`,
		},
	}
}

// add adds the archive of a platform.
func (m *Manifest) add(system, arch, uri string, content []byte) {
	sum := sha256.Sum256(content)
	m.Spec.Platforms = append(m.Spec.Platforms, Platform{
		Selector: metav1.LabelSelector{MatchLabels: map[string]string{"os": system, "arch": arch}},
		URI:      uri, SHA256: hex.EncodeToString(sum[:]), Bin: program,
	})
}

// check returns an error for what krew would refuse.
func (m *Manifest) check() error {
	switch {
	case !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(m.Spec.Version):
		return fmt.Errorf("version %q: want a semantic version with a v, such as v1.2.3", m.Spec.Version)
	case len(m.Spec.Platforms) == 0:
		return errors.New("no platform is given")
	}
	for i := range m.Spec.Platforms {
		if err := m.Spec.Platforms[i].check(); err != nil {
			return fmt.Errorf("platform %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *Platform) check() error {
	address, err := url.Parse(p.URI)
	switch {
	case err != nil:
		return err
	case address.Scheme != "https" || address.Host == "":
		return fmt.Errorf("address %q: want one with https, from -base", p.URI)
	case p.Selector.MatchLabels["os"] == "" || p.Selector.MatchLabels["arch"] == "":
		return fmt.Errorf("selector %v: want the labels os and arch", p.Selector.MatchLabels)
	}
	return nil
}

func (m *Manifest) yaml() ([]byte, error) {
	text, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", manifestName, err)
	}
	return text, nil
}

// archive returns the archive with the program and the license. It has no times and no users, so that it depends on nothing else.
func archive(binary, license []byte) ([]byte, error) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	files := tar.NewWriter(zip)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{"LICENSE", 0o644, license}, {program, 0o755, binary}} {
		if err := files.WriteHeader(&tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.content)), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := files.Write(file.content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(files.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
