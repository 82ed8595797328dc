package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// holdingsOfVersion2 are those of testdata/ledger.v2.
func holdingsOfVersion2() []Holding {
	at := time.Date(2026, 12, 1, 12, 0, 0, 123456789, time.UTC)
	train := gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-1", Namespace: "ml", Name: "train"}
	pods := []gpu.Pod{{UID: "u1", Namespace: "ml", Name: "train-0"}, {UID: "u2"}}
	return []Holding{
		{
			Holding: gpu.Holding{Key: key("GPU-0"), Since: at, Holder: gpu.Holder{
				Kind: gpu.HolderPod, PodUID: "u5", Namespace: "default", Name: "cuda-0", Container: "cuda", Resource: "nvidia.com/gpu",
			}},
			Containers: []string{"cuda"}, Grants: []string{"0123456789abcdef0123456789abcdef"}, Live: []string{"c1"},
		},
		{Holding: gpu.Holding{Key: anyKey("GPU-1/0:4"), Since: at, Holder: train, Requests: []string{"half", "spare"}, Pods: pods}},
		{Holding: gpu.Holding{Key: anyKey("GPU-1/4:2#1"), Since: at.Add(time.Second), Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-2"}}},
		{Holding: gpu.Holding{Key: anyKey("GPU-1/6:1"), Since: at, Holder: gpu.Holder{Kind: gpu.HolderMaintenance, ID: "MIG"}}},
		{Holding: gpu.Holding{
			Key: key("GPU-1/MIG-1"), Since: at, Holder: train, Requests: []string{"small"}, Pods: pods, Placement: gpu.Placement{Start: 7, Size: 1},
		}},
		{Holding: gpu.Holding{Key: key("GPU-2#2"), Since: at, Holder: train, Pods: pods}},
	}
}

func asRecords(holdings []Holding) ([]gpu.DeviceKey, map[gpu.DeviceKey]*record) {
	records := map[gpu.DeviceKey]*record{}
	var order []gpu.DeviceKey
	for _, h := range holdings {
		order = append(order, h.Key)
		records[h.Key] = &record{Holding: h}
	}
	return order, records
}

// TestFileOfVersion2 reads the golden file of version 2, and writes the same bytes.
func TestFileOfVersion2(t *testing.T) {
	blob, err := os.ReadFile("testdata/ledger.v2")
	if err != nil {
		t.Fatal(err)
	}
	order, records := asRecords(holdingsOfVersion2())
	written, err := appendFile(nil, "boot1", order, records)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written, blob) {
		t.Errorf("the file is written as\n%s\nand was\n%s", written, blob)
	}
	got, err := parseFile(blob, "boot1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, holdingsOfVersion2(), equal) {
		t.Errorf("holdings are %v, want %v", got, holdingsOfVersion2())
	}
}

// TestVersion2IsRefusedByVersion1: an agent of version 1 refuses the golden file of version 2 with the present sentence, and
// ignores the pods and requests of claims as long as there is no placement.
func TestVersion2IsRefusedByVersion1(t *testing.T) {
	blob, err := os.ReadFile("testdata/ledger.v2")
	if err != nil {
		t.Fatal(err)
	}
	var newer *versionError
	_, err = parseFileUpTo(1, blob, "boot1")
	if !errors.As(err, &newer) || !strings.HasPrefix(err.Error(), "format version 2 is newer than 1, which is the newest that this agent supports") {
		t.Errorf("version 1 reads version 2 with %v", err)
	}
	unplaced := slices.DeleteFunc(holdingsOfVersion2(), func(h Holding) bool { return h.Key.Placement.Known() })
	order, records := asRecords(unplaced)
	written, err := appendFile(nil, "boot1", order, records)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseFileUpTo(1, written, "boot1")
	if err != nil || !slices.EqualFunc(got, unplaced, equal) {
		t.Errorf("version 1 reads a file without placements as %v, %v", got, err)
	}
}

// TestMigrationOfVersion1: the holdings of a file of version 1 are kept; the first hold by placement makes it a file of version
// 2, and with the last one it is of version 1 again, which an older agent reads.
func TestMigrationOfVersion1(t *testing.T) {
	blob, err := os.ReadFile("testdata/ledger.v1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(path, blob, 0o600); err != nil {
		t.Fatal(err)
	}
	l := openTest(t, path, nil)
	before := names(l)
	if len(before) != 5 || len(l.Faults()) > 0 {
		t.Fatalf("version 1 is read as %v with %v", before, l.Faults())
	}
	header := func(want string) {
		t.Helper()
		if now, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(now), `{"format":"berth-ledger","version":`+want+`,"bootID":"boot1"}`+"\n") {
			t.Errorf("want version %s: %s (%v)", want, now, err)
		}
	}
	header("1")
	if err := l.AcquireClaim(train(on("GPU-9/0:4"))); err != nil {
		t.Fatal(err)
	}
	header("2")
	want := append(slices.Clone(before), "GPU-9/0:4 Claim claim-1 (ml/train) pods=P1,P2")
	if diff := cmp.Diff(want, names(openTest(t, path, nil))); diff != "" {
		t.Errorf("version 2 (-want +got):\n%s", diff)
	}
	next := openTest(t, path, nil)
	if err := next.Resolve(train().Holder(), anyKey("GPU-9/0:4"), "MIG-9"); err != nil {
		t.Fatal(err)
	}
	header("1")
}

// TestBadLines: what no agent writes is refused with the line and the reason.
func TestBadLines(t *testing.T) {
	holding := func(key, more string) string {
		return `{"key":` + key + `,"holder":{"kind":"Claim","id":"A"},"since":"2026-12-01T12:00:00Z"` + more + `}`
	}
	const placed = `{"gpu":"G0","placement":{"start":0,"size":4}}`
	tests := map[string]struct {
		version string
		lines   []string
		want    string
	}{
		"a placement in version 1":     {"1", []string{holding(placed, "")}, `line 2: key "G0/0:4" has a placement, which version 1 does not have`},
		"a placement and a MIG device": {"2", []string{holding(`{"gpu":"G0","mig":"M1","placement":{"start":0,"size":4}}`, "")}, `line 2: key "G0/M1" identifies no device`},
		"a negative start":             {"2", []string{holding(`{"gpu":"G0","placement":{"start":-1,"size":4}}`, "")}, "identifies no device"},
		"no slices":                    {"2", []string{holding(`{"gpu":"G0","placement":{"start":1,"size":0}}`, "")}, "identifies no device"},
		"a pod's placement": {
			"2", []string{strings.Replace(holding(placed, ""), `"Claim","id":"A"`, `"Pod"`, 1)}, "the kubelet knows no such device",
		},
		"a placement twice":         {"2", []string{holding(placed, ""), holding(placed, "")}, `line 3: key "G0/0:4" is out of order`},
		"a placement before a GPU":  {"2", []string{holding(placed, ""), holding(`{"gpu":"G0","share":1}`, "")}, `line 3: key "G0#1" is out of order`},
		"a pod without a UID":       {"2", []string{holding(placed, `,"pods":[{"name":"x"}]`)}, "has a pod without a UID"},
		"a known place of no slice": {"2", []string{holding(`{"gpu":"G0","mig":"M1"}`, `,"placement":{"start":3,"size":0}`)}, `placement 3:0 of key "G0/M1"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			body := `{"format":"berth-ledger","version":` + test.version + `,"bootID":"boot1"}` + "\n" + strings.Join(test.lines, "\n") + "\n"
			_, err := parseFile(sealed(body, len(test.lines)), "boot1")
			var corrupt *corruptError
			if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("read with %v, want %q", err, test.want)
			}
		})
	}
}

// sealed adds the trailer.
func sealed(body string, holdings int) []byte {
	return fmt.Appendf([]byte(body), "{\"holdings\":%d,\"crc32c\":%d}\n", holdings, crc32.Checksum([]byte(body), castagnoli))
}

// FuzzParseFileOfVersion2 reads any lines of holdings, whose trailer is correct so that they are reached: they result in holdings
// with valid keys in order, which are written in the same form, or in an error with the line.
func FuzzParseFileOfVersion2(f *testing.F) {
	golden, err := os.ReadFile("testdata/ledger.v2")
	if err != nil {
		f.Fatal(err)
	}
	lines := strings.SplitAfter(string(golden), "\n")
	f.Add(strings.Join(lines[1:len(lines)-2], ""))
	for _, line := range lines {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		body := `{"format":"berth-ledger","version":2,"bootID":"boot1"}` + "\n" + text
		holdings, err := parseFile(sealed(body, strings.Count(text, "\n")), "boot1")
		if err != nil {
			if corrupt := (*corruptError)(nil); !errors.As(err, &corrupt) || corrupt.line < 2 {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		order, records := asRecords(holdings)
		if !slices.IsSortedFunc(order, gpu.CompareKeys) || len(records) != len(order) || slices.ContainsFunc(order, func(k gpu.DeviceKey) bool { return !k.Valid() }) {
			t.Fatalf("keys %v", order)
		}
		again, err := appendFile(nil, "boot1", order, records)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := parseFile(again, "boot1")
		if err != nil || !slices.EqualFunc(twice, holdings, equal) {
			t.Fatalf("read again: %v, want %v (%v)", twice, holdings, err)
		}
	})
}
