package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// release makes the archives and the manifest of two platforms, and returns their directory and what was printed.
func release(t *testing.T, version string) (dir, printed string, err error) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"amd64", "arm64", "LICENSE"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("the bytes of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	err = run([]string{"-version", version, "-base", "https://example.com/download/" + version, "-license", filepath.Join(dir, "LICENSE"), "-out", dir,
		"linux-amd64=" + filepath.Join(dir, "amd64"), "linux-arm64=" + filepath.Join(dir, "arm64")}, &out)
	return dir, strings.ReplaceAll(out.String(), dir+"/", ""), err
}

// TestManifest checks the manifest as krew reads it: the fields that it requires, and that each archive has the checksum and the program
// that the manifest says.
func TestManifest(t *testing.T) {
	dir, printed, err := release(t, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if want := "kubectl-berth-v1.2.3-linux-amd64.tar.gz\nkubectl-berth-v1.2.3-linux-arm64.tar.gz\nberth.yaml\n"; printed != want {
		t.Errorf("it printed %q, want %q", printed, want)
	}
	text, err := os.ReadFile(filepath.Join(dir, "berth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// A plain map: what krew requires is named here once more, not taken from the types that wrote it.
	var got struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       struct {
			Version          string `json:"version"`
			Homepage         string `json:"homepage"`
			ShortDescription string `json:"shortDescription"`
			Description      string `json:"description"`
			Caveats          string `json:"caveats"`
			Platforms        []struct {
				Selector struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"selector"`
				URI    string `json:"uri"`
				SHA256 string `json:"sha256"`
				Bin    string `json:"bin"`
			} `json:"platforms"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || got.Kind != "Plugin" || got.Metadata["name"] != "berth" || got.Spec.Version != "v1.2.3" {
		t.Errorf("%s %s %v %s", got.APIVersion, got.Kind, got.Metadata, got.Spec.Version)
	}
	// krew's rules for its index: one line, at most 50 characters are advised, without the word kubectl.
	if short := got.Spec.ShortDescription; short == "" || strings.ContainsAny(short, "\r\n") || len(short) > 50 || strings.Contains(short, "kubectl") {
		t.Errorf("the short description is %q", short)
	}
	if got.Spec.Description == "" || got.Spec.Homepage == "" || len(got.Spec.Platforms) != 2 {
		t.Errorf("the description, the home page or a platform is missing:\n%s", text)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		p := got.Spec.Platforms[i]
		if diff := cmp.Diff(map[string]string{"os": "linux", "arch": arch}, p.Selector.MatchLabels); diff != "" {
			t.Errorf("selector (-want +got):\n%s", diff)
		}
		name := "kubectl-berth-v1.2.3-linux-" + arch + ".tar.gz"
		if want := "https://example.com/download/v1.2.3/" + name; p.URI != want {
			t.Errorf("address %q, want %q", p.URI, want)
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); p.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("checksum %s, want %x", p.SHA256, sum)
		}
		want := map[string]string{"LICENSE": "-rw-r--r-- the bytes of LICENSE", p.Bin: "-rwxr-xr-x the bytes of " + arch}
		if diff := cmp.Diff(want, unpack(t, content)); diff != "" || p.Bin != "kubectl-berth" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// unpack returns the mode and the content of each file of an archive.
func unpack(t *testing.T, content []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(zip); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = header.FileInfo().Mode().String() + " " + string(text)
	}
}

// TestSameBytes: a second run makes the same files.
func TestSameBytes(t *testing.T) {
	first, _, err := release(t, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := release(t, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"berth.yaml", "kubectl-berth-v1.2.3-linux-amd64.tar.gz"} {
		one, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join(second, name))
		if err != nil || !bytes.Equal(one, other) {
			t.Errorf("%s differs between two runs (%v)", name, err)
		}
	}
}

func TestRefused(t *testing.T) {
	license, binary := "../../LICENSE", "krew_test.go"
	tests := map[string]struct {
		args []string
		want string
	}{
		"no platform":    {nil, "no platform is given: want OS-ARCH=PROGRAM"},
		"no program":     {[]string{"linux-amd64"}, "linux-amd64: want OS-ARCH=PROGRAM"},
		"no arch":        {[]string{"linux=" + binary}, "want OS-ARCH=PROGRAM"},
		"empty arch":     {[]string{"linux-=" + binary}, "want the labels os and arch"},
		"missing file":   {[]string{"linux-amd64=none"}, "read the program of linux-amd64: open none"},
		"no version":     {[]string{"-version", "", "linux-amd64=" + binary}, `krew would refuse berth.yaml: version "": want a semantic version`},
		"a commit":       {[]string{"-version", "5956d5ab", "linux-amd64=" + binary}, `version "5956d5ab": want a semantic version`},
		"plain http":     {[]string{"-base", "http://example.com", "linux-amd64=" + binary}, "want one with https, from -base"},
		"no address":     {[]string{"-base", "", "linux-amd64=" + binary}, "want one with https, from -base"},
		"no license":     {[]string{"-license", "none", "linux-amd64=" + binary}, "read the license: open none"},
		"no such folder": {[]string{"-out", "none", "linux-amd64=" + binary}, "write what krew installs: open none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"-version", "v1.2.3", "-base", "https://example.com", "-license", license, "-out", dir}, tc.args...)
			if err := run(args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "berth.yaml")); err == nil {
				t.Error("it wrote a manifest")
			}
		})
	}
}
