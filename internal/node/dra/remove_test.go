package dra

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	const driver = "gpu.berth.dev"
	err := errors.Join(os.MkdirAll(registryDir(dir), 0o700), os.MkdirAll(pluginDir(dir, driver), 0o700),
		os.WriteFile(filepath.Join(registryDir(dir), driver+"-reg.sock"), nil, 0o600)) // A file is not a socket.
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		filepath.Join(registryDir(dir), driver+"-one-reg.sock"), filepath.Join(registryDir(dir), "nic.example.com-reg.sock"),
		filepath.Join(pluginDir(dir, driver), "dra.sock"), filepath.Join(pluginDir(dir, driver), "dra-two.sock"),
	} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
	}
	for range 2 {
		if err := Remove(dir, driver); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if !entry.IsDir() {
			left = append(left, filepath.Base(path))
		}
		return err
	})
	want := []string{driver + "-reg.sock", "nic.example.com-reg.sock"}
	if slices.Sort(left); err != nil || !slices.Equal(left, want) {
		t.Errorf("%v are left (%v), want %v", left, err, want)
	}
	if _, err := os.Stat(pluginDir(dir, driver)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the driver's folder: %v", err)
	}
	if err := Remove(strings.Repeat("x", 10), driver); err != nil {
		t.Errorf("without a kubelet: %v", err)
	}
}
