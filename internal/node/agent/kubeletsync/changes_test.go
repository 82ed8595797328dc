package kubeletsync

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestNoteChanges checks that a holding that begins or ends is logged, and one that was only updated is not; two pods
// on one device and a container of unknown devices are problems until the next look.
func TestNoteChanges(t *testing.T) {
	var log bytes.Buffer
	var reported []gpu.Cause
	s := New(Deps{Log: slog.New(slog.NewTextHandler(&log, nil)), Report: func(source string, causes ...gpu.Cause) {
		if source == "conflicts" {
			reported = causes
		}
	}})
	key := gpu.DeviceKey{GPU: "GPU-a"}
	held := ledger.Holding{Holding: gpu.Holding{Key: key, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: "p"}}}
	s.noteChanges(ledger.Changes{
		List:      []ledger.Change{{What: ledger.Confirmed, Holding: held}, {What: ledger.Updated, Holding: held}, {What: ledger.Released, Holding: held}},
		Conflicts: []ledger.Conflict{{Key: key, Pods: []string{"p", "q"}, Why: "the checkpoint lists it for both"}},
		Unmarked:  []ledger.Container{{Name: "c", Namespace: "ns", Pod: "pod", PodUID: "r", Open: []gpu.DeviceKey{key}}},
	})
	if got := strings.Count(log.String(), "\n"); got != 2 || !strings.Contains(log.String(), "Holding confirmed") || !strings.Contains(log.String(), "Holding released") {
		t.Errorf("logged %d lines, want the two that are no update:\n%s", got, log.String())
	}
	var codes []string
	for _, cause := range reported {
		codes = append(codes, cause.Code)
	}
	if diff := cmp.Diff([]string{"DEVICE_CONFLICT", "CONTAINER_UNMARKED"}, codes); diff != "" {
		t.Error(diff)
	}
	if s.noteChanges(ledger.Changes{}); len(reported) != 0 {
		t.Errorf("after a look without conflicts there are %v", reported)
	}
}
