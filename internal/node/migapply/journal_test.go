package migapply

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"generation":3,"owner":"a","cards":[{"uuid":"GPU-0","wanted":{"enabled":true,"devices":{"1g.10gb":2}},"source":"x","plan":{}}]}`))
	f.Add([]byte(`{"generation":0}`))
	f.Fuzz(func(t *testing.T, blob []byte) {
		var j journal
		if json.Unmarshal(blob, &j) != nil || j.check() != nil || len(j.GPUs) == 0 {
			return
		}
		d, err := openStore(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		if err := d.write(j, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if back, result := d.read(); result.State != statefile.Present || !cmp.Equal(j, back, cmpopts.EquateEmpty()) {
			t.Errorf("%q reads %+v, which is written and reads %+v, %+v", blob, j, back, result)
		}
	})
}

// TestJournalChangedOnDisk: a digit that a bad disk has changed is damage and no other layout, and the damaged file is
// kept.
func TestJournalChangedOnDisk(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	w.endAgent()
	d, err := openStore(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	j := journal{Generation: 1, Owner: "before", GPUs: []entry{{UUID: "GPU-0", Wanted: wanted("3x1g.10gb")}}}
	if err := d.write(j, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	d.close()
	path := filepath.Join(w.dir, JournalFile)
	blob, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoilt := regexp.MustCompile(`"1g.10gb": ?3`).ReplaceAll(blob, []byte(`"1g.10gb":7`))
	if err := os.WriteFile(path, spoilt, 0o600); err != nil {
		t.Fatal(err)
	}
	w.startAgent()
	w.reconcile()
	if w.gpuOf("GPU-0").enabled {
		t.Error("the GPU was partitioned according to the damaged journal")
	}
	if kept, err := os.ReadFile(path + ".bak"); err != nil || !bytes.Equal(kept, spoilt) {
		t.Errorf("kept %q, %v, want %q", kept, err, spoilt)
	}
}

// TestJournalThatCannotBeKept is not overwritten, and no layout is changed until it can be.
func TestJournalThatCannotBeKept(t *testing.T) {
	w := newWorld(t, t.TempDir(), 1)
	path := filepath.Join(w.dir, JournalFile)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".bak", 0o700); err != nil { // A file cannot replace a folder.
		t.Fatal(err)
	}
	w.want("GPU-0", "1x7g.80gb", "")
	w.reconcile()
	if faults := w.partition.Faults(); w.gpuOf("GPU-0").enabled || len(faults) != 1 || faults[0].Code != "MIG_JOURNAL_UNREADABLE" {
		t.Errorf("MIG is on: %v; faults %v", w.gpuOf("GPU-0").enabled, faults)
	}
	if left, err := os.ReadFile(path); err != nil || string(left) != "{" {
		t.Errorf("the journal is %q, %v", left, err)
	}
	if err := os.Remove(path + ".bak"); err != nil {
		t.Fatal(err)
	}
	w.clock.Step(lastRetry)
	w.settle()
	if !w.gpuOf("GPU-0").enabled || len(w.partition.Faults()) != 0 {
		t.Errorf("afterwards MIG is on: %v; faults %v", w.gpuOf("GPU-0").enabled, w.partition.Faults())
	}
}
