package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/kubelet/checkpoint"
)

// TestCheckpointReader: an unchanged file is read once, a changed one again, and the stamp identifies the content.
func TestCheckpointReader(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, CheckpointFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(pod string) {
		t.Helper()
		blob, err := checkpoint.Encode([]checkpoint.PodDevicesEntry{{PodUID: pod, ContainerName: "c", ResourceName: "nvidia.com/gpu"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		// As the kubelet does: a new file in place of the old one.
		if err := os.WriteFile(path+".new", blob, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	r := NewCheckpointReader(dir)
	read := func() *Checkpoint {
		t.Helper()
		got, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}

	if _, err := r.Read(); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("without a file: %v, want ErrNoCheckpoint", err)
	}
	time.Sleep(2 * settled)
	missing := r.Stamp()
	if missing == "" || r.Stamp() != missing {
		t.Errorf("the stamps of a missing file are %q and %q, want two equal ones", missing, r.Stamp())
	}
	write("p")
	if stamp := r.Stamp(); stamp != "" {
		t.Errorf("the stamp of a file that was just written is %q, want none: it may change within the clock's tick", stamp)
	}
	if a, b := read(), read(); a == b {
		t.Error("a file that was just written was read once for two calls")
	}
	time.Sleep(2 * settled)
	first, stamp := read(), r.Stamp()
	if read() != first {
		t.Error("an unchanged file was read again")
	}
	write("q") // of the same size
	if got := read(); got == first || got.Assignments[0].PodUID != "q" || r.Stamp() == stamp {
		t.Errorf("after a write %v was read, stamp %q; want the new content", got.Assignments, r.Stamp())
	}
	time.Sleep(2 * settled)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * settled)
	if _, err := r.Read(); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("after the removal: %v, want ErrNoCheckpoint", err)
	}
	if again := r.Stamp(); again == "" || again == missing {
		t.Errorf("the stamp after a write and a removal is %q, and was %q before", again, missing)
	}
}
