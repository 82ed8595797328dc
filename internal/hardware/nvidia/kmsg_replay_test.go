package nvidia

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// replay reads a recorded /dev/kmsg as the adapter reads that of the kernel.
func replay(t *testing.T, name string) []string {
	t.Helper()
	records, err := os.ReadFile(filepath.Join("testdata", "kmsg", name))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	path := filepath.Join(root, kmsgFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	k := kernelLog{dev: tree{root}, log: slog.New(slog.DiscardHandler)}
	if !k.open() {
		t.Fatal("the log cannot be opened")
	}
	defer k.close()
	if err := os.WriteFile(path, records, 0o644); err != nil {
		t.Fatal(err)
	}
	var said []string
	k.drain(func(n notice) {
		said = append(said, fmt.Sprintf("%s %s", n.pci, n.code))
	})
	return said
}

// TestForgedKernelLines replays what Linux 6.18 wrote while an unprivileged process ran programs and mounted file systems with
// names that imitate the driver's lines: an executable stack, segmentation faults under such names (the kernel begins those
// lines with the first 15 bytes of the name), overlayfs in a user namespace; and what a program of root wrote into /dev/kmsg,
// to which the kernel gives facility 1.
func TestForgedKernelLines(t *testing.T) {
	if said := replay(t, "forged"); len(said) > 0 {
		t.Errorf("accepted %d forged lines: %q", len(said), said)
	}
}

// TestDriversKernelLines: the driver's own lines are reported.
func TestDriversKernelLines(t *testing.T) {
	const gpu, nvswitch = "0000:07:00.0", "0000:c1:00.0"
	want := []string{
		gpu + " XID79", gpu + " XID79", gpu + " XID79", gpu + " XID154", gpu + " XID94",
		nvswitch + " SXID20034",
	}
	if diff := cmp.Diff(want, replay(t, "driver")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
