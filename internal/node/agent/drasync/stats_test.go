package drasync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestReasons: each error that the driver returns, with whatever is said around it, has a reason from a fixed set. A prepare that took too
// long is not one that the kubelet has ended.
func TestReasons(t *testing.T) {
	if got := reasonOf(&dra.LateError{Err: context.DeadlineExceeded}); got != "not_ready" {
		t.Errorf("a prepare that took too long has the reason %q", got)
	}
	for want, err := range map[string]error{
		"":            nil,
		"held":        fmt.Errorf("claim a/b: %w", &ledger.BlockedError{}),
		"refused":     fmt.Errorf("x: %w", &dra.RefusedError{Err: errors.New("device gpu-1 is not on this node any more")}),
		"canceled":    fmt.Errorf("claim a/b: the kubelet has ended the call: %w", context.Canceled),
		"other_agent": fmt.Errorf("claim a/b: %w", ledger.ErrSuperseded),
		"not_ready":   fmt.Errorf("claim a/b: %w", &notReadyError{errors.New("the CDI spec on disk does not have it")}),
		"other":       errors.New("write the ledger: no space left on device"),
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v has the reason %q, want %q", err, got, want)
		}
	}
}

// TestStatsOfAnIdleDriver: an agent without an API server, and one that allocates nothing through DRA, has no figures.
func TestStatsOfAnIdleDriver(t *testing.T) {
	for name, s := range map[string]*Syncer{"no API server": nil, "no device": {}} {
		if diff := cmp.Diff(dra.Stats{Age: -1}, s.Stats()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var events []string
	s := &Syncer{deps: Deps{NotPrepared: func(namespace, name, uid, message string) {
		events = append(events, namespace+"/"+name+" "+uid+": "+message)
	}}}
	s.observe(dra.Call{Operation: dra.Prepare, Namespace: "ns", Name: "train", UID: "u1", Took: time.Second, Err: &dra.RefusedError{Err: errors.New("no")}})
	if list := s.calls.List(); len(list) != 1 || list[0].Operation != "prepare" || list[0].Errors[0] != (dra.CallErrors{Reason: "refused", Count: 1}) {
		t.Errorf("the calls are %+v", list)
	}
	for _, call := range []dra.Call{
		{Operation: dra.Prepare}, {Operation: dra.Unprepare, Err: errors.New("disk full")},
		{Operation: dra.Prepare, Err: fmt.Errorf("the kubelet has ended the call: %w", context.Canceled)},
	} {
		s.observe(call)
	}
	if want := []string{"ns/train u1: no"}; !slices.Equal(events, want) {
		t.Errorf("events are %v, want %v", events, want)
	}
}
