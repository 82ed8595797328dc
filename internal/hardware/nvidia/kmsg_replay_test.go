package nvidia

import (
	stdcmp "cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
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

// TestPast: all that the log has about the GPUs of the last scan, from its first line on, and nothing before a scan or without a log.
func TestPast(t *testing.T) {
	root := t.TempDir()
	a := New(Deps{Roots: Roots{Dev: root}})
	address, err := gpu.ParsePCIAddress("0000:07:00.0")
	if err != nil {
		t.Fatal(err)
	}
	if past, last := a.Past(); len(past) > 0 || last > 0 {
		t.Errorf("before a scan: %v, %d", past, last)
	}
	a.addresses.Store(&watchList{addresses: map[gpu.PCIAddress]gpu.UUID{address: "GPU-a"}})
	if past, last := a.Past(); len(past) > 0 || last > 0 {
		t.Errorf("without a log: %v, %d", past, last)
	}
	var log strings.Builder
	for i, text := range append(make([]string, 3*maxDrain), "NVRM: Xid (PCI:0000:07:00): 48, pid=1", "NVRM: Xid (PCI:0000:08:00): 79, pid=1", "nvidia 0000:07:00.0: reset done") {
		fmt.Fprintf(&log, "4,%d,%d,-;%s\n", i, i, stdcmp.Or(text, strings.Repeat("x", maxRecord/2)))
	}
	path := filepath.Join(root, kmsgFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(log.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	const before = 3 * maxDrain
	for range 2 {
		past, last := a.Past()
		var got []string
		for _, event := range past {
			got = append(got, fmt.Sprintf("%d %s %s reset %t", event.Record-before, event.GPU, event.Code, event.Reset))
		}
		if diff := cmp.Diff([]string{"1 GPU-a XID48 reset false", "3 GPU-a  reset true"}, got); diff != "" || last != before+3 {
			t.Errorf("last %d, -want +got:\n%s", last, diff)
		}
	}
	// Watch goes on behind it, also after it has opened the log again.
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, record := range []int{before + 3, before + 4} {
		if _, err := fmt.Fprintf(file, "4,%d,0,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1\n", record); err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for a.kernelLog.drain(func(n notice) { got = append(got, n.record) }) {
		}
		if len(got) != 1 || got[0] != uint64(record)+1 {
			t.Errorf("then %v, want %d", got, record+1)
		}
		a.kernelLog.close()
	}
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
	const device, nvswitch = "0000:07:00.0", "0000:c1:00.0"
	want := []string{
		device + " XID79", device + " XID79", device + " XID79", device + " XID154", device + " XID94",
		nvswitch + " SXID20034",
	}
	if diff := cmp.Diff(want, replay(t, "driver")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
