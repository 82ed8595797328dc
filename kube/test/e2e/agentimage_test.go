package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/berth-gpu/berth/hack/images/image"
)

// simulatorPackage is the prefix of the names of the simulator's functions. A Go program has them in its function
// table, which it needs to run, also without symbols.
const simulatorPackage = "github.com/berth-gpu/berth/internal/hardware/sim."

// TestAgentImage checks that no file of the agent's image, which all tests of this package run, has code of the
// simulator or is a library of the driver. As a counter-check, the same search must find the simulator in the programs
// that link it.
func TestAgentImage(t *testing.T) {
	bin := binDir(t)
	img, err := image.Load(filepath.Join(bin, "images", "berth-agent"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("skipped: the images are not made: %v; make them with make images", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	files := imageFiles(t, img)
	for _, name := range []string{"berth-agent", "berth-cdi-hook"} {
		if !bytes.Contains(files[name], []byte("github.com/berth-gpu/berth/")) {
			t.Errorf("the image has no %s of Berth", name)
		}
	}
	for name, content := range files {
		if bytes.Contains(content, []byte(simulatorPackage)) {
			t.Errorf("%s of the agent's image has code of the simulator", name)
		}
		if found, _ := filepath.Match("libnvidia-*", filepath.Base(name)); found {
			t.Errorf("the agent's image has %s, a file of the driver", name)
		}
	}
	for _, name := range []string{"berth", "libnvidia-ml.so.1", "berth-sim-tools"} {
		content, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(content, []byte(simulatorPackage)) {
			t.Errorf("%s, which links the simulator, has none of its function names: the check finds nothing", name)
		}
	}
	for name, want := range map[string]bool{"berth-agent": false, "berth": true} {
		symbols, err := exec.Command("go", "tool", "nm", filepath.Join(bin, name)).Output()
		if err != nil {
			t.Fatalf("list the symbols of %s: %v", name, err)
		}
		if got := bytes.Contains(symbols, []byte(simulatorPackage)); got != want {
			t.Errorf("the symbols of %s have functions of the simulator: %v, want %v", name, got, want)
		}
	}
}

// imageFiles returns the content of all files of an image.
func imageFiles(t testing.TB, img image.Named) map[string][]byte {
	t.Helper()
	content := mutate.Extract(img.Image)
	defer content.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// imageLabels returns the labels of the image in a layout.
func imageLabels(t testing.TB, layout string) map[string]string {
	t.Helper()
	img, err := image.Open(layout)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Config.Labels
}
