package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// turnCDIOff gives the node a configuration of containerd that turns CDI off: a copy of /etc with it is mounted over the node's own.
func turnCDIOff(t *testing.T, node sandbox.Node) (repair func()) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	etc := filepath.Join(t.TempDir(), "etc")
	inside := func(argv ...string) {
		t.Helper()
		if out, err := node.Exec(ctx, argv...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	inside("cp", "-a", "/etc", etc)
	if err := os.MkdirAll(filepath.Join(etc, "containerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	const config = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = false\n"
	if err := os.WriteFile(filepath.Join(etc, "containerd", "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	inside("mount", "--bind", etc, "/etc")
	return func() { t.Helper(); inside("umount", "/etc") }
}

// removeDeviceNode removes the device node of a GPU.
func removeDeviceNode(t *testing.T, node sandbox.Node) (repair func()) {
	t.Helper()
	path := filepath.Join(node.SimDir(), "root", "dev", "nvidia4")
	var before unix.Stat_t
	if err := unix.Stat(path, &before); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := unix.Mknod(path, before.Mode, int(before.Rdev)); err != nil {
			t.Fatal(err)
		}
	}
}
