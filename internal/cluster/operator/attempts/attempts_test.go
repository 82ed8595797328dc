package attempts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

var object = attempts.Object{Kind: "ResourceQuota", Namespace: "a", Name: "b"}

type world struct {
	*attempts.Objects
	t     *testing.T
	clock *clocktesting.FakeClock
	log   bytes.Buffer
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	w.Objects = attempts.New(w.clock, slog.New(slog.NewTextHandler(&w.log, nil)))
	return w
}

// try attempts, and returns the time until the next attempt.
func (w *world) try(do func() error) time.Duration {
	w.t.Helper()
	after, _ := w.Attempt(w.t.Context(), object, do)
	return after
}

// failing returns an attempt that fails.
func failing(format string, args ...any) func() error {
	return func() error { return fmt.Errorf(format, args...) }
}

func (w *world) undo(edit string) func() error {
	return func() error {
		w.Undid(object, edit)
		return nil
	}
}

func (w *world) checkNotKept(want ...string) {
	w.t.Helper()
	var got []string
	for _, p := range w.NotKept() {
		got = append(got, p.Object.String()+": "+p.Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("not kept (-want +got):\n%s", diff)
	}
}

// checkLog expects lines of the log that contain these texts.
func (w *world) checkLog(want ...string) {
	w.t.Helper()
	lines := strings.Split(strings.TrimSuffix(w.log.String(), "\n"), "\n")
	if w.log.Len() == 0 {
		lines = nil
	}
	w.log.Reset()
	if len(lines) != len(want) {
		w.t.Errorf("%d lines %q, want %q", len(lines), lines, want)
		return
	}
	for i := range want {
		if !strings.Contains(lines[i], want[i]) {
			w.t.Errorf("line %q, want %q in it", lines[i], want[i])
		}
	}
}

func (w *world) changed() bool {
	select {
	case <-w.Changed():
		return true
	default:
		return false
	}
}

// TestFails: the delays grow to a minute, whatever wakes the controller, each reason is one line, and success ends it at once.
func TestFails(t *testing.T) {
	w := newWorld(t)
	want := 100 * time.Millisecond
	for n := range 20 {
		if after := w.try(failing("dial 10.0.0.1:%d: refused", n)); after != want {
			t.Fatalf("attempt %d: again after %v, want %v", n+1, after, want)
		}
		w.clock.Step(want - time.Millisecond)
		after, err := w.Attempt(t.Context(), object, func() error { t.Fatal("attempted too early"); return nil })
		if after != time.Millisecond || err == nil {
			t.Fatalf("woken: again after %v, %v; want the rest of the time, and the last error", after, err)
		}
		w.clock.Step(time.Millisecond)
		want = min(2*want, time.Minute)
		if reported := len(w.NotKept()) > 0; reported != (n >= 4) {
			t.Errorf("after attempt %d it is reported: %v", n+1, reported)
		}
	}
	w.checkNotKept("ResourceQuota a/b: dial 10.0.0.1:19: refused")
	if !w.changed() || w.changed() {
		t.Error("want one signal")
	}
	w.checkLog("refused")
	w.try(failing("forbidden"))
	w.checkLog("forbidden")
	if !w.changed() {
		t.Error("another reason is no change")
	}
	w.clock.Step(time.Minute)
	if after := w.try(func() error { return nil }); after != 0 {
		t.Errorf("after success: again after %v", after)
	}
	w.checkLog("in line again")
	w.checkNotKept()
	if !w.changed() {
		t.Error("the end is no change")
	}
	if after := w.try(failing("x")); after != 100*time.Millisecond {
		t.Errorf("the next failure: again after %v", after)
	}
}

// TestEdits: edits that are undone delay the next one, and are forgotten when others leave the object alone.
func TestEdits(t *testing.T) {
	w := newWorld(t)
	total := time.Duration(0)
	for range 12 {
		if after := w.try(w.undo("spec.a")); after != 5*time.Minute {
			t.Fatalf("again after %v, want the time until it is forgotten", after)
		}
		after := w.try(func() error { t.Fatal("attempted too early"); return nil })
		w.clock.Step(after)
		total += after
	}
	if total < 2*time.Minute {
		t.Errorf("12 edits were undone within %v", total)
	}
	w.checkNotKept("ResourceQuota a/b: others change it again and again: spec.a")
	w.checkLog("again and again")
	if first := w.Undid(object, "spec.a"); first {
		t.Error("the same edit is reported again")
	}
	if other := w.Undid(object, "spec.b"); !other {
		t.Error("another edit is not reported")
	}
	w.clock.Step(5*time.Minute - time.Second)
	if after := w.try(func() error { return nil }); after != time.Second {
		t.Errorf("again after %v, want the rest of the time", after)
	}
	w.clock.Step(time.Second)
	if after := w.try(func() error { return nil }); after != 0 {
		t.Errorf("left alone: again after %v", after)
	}
	w.checkNotKept()
	w.checkLog("in line again")
	if first := w.Undid(object, "spec.a"); !first {
		t.Error("the next edit is not reported")
	}
	// A failure in between does not hide that others edit it.
	w.clock.Step(time.Second)
	w.try(failing("x"))
	w.clock.Step(time.Second)
	w.try(w.undo("spec.a"))
	if after := w.try(func() error { return nil }); after != 400*time.Millisecond {
		t.Errorf("after three attempts: again after %v", after)
	}
}

// TestOutageIsNoEdit: an object that is made again after an outage was not edited again and again.
func TestOutageIsNoEdit(t *testing.T) {
	w := newWorld(t)
	for range 6 {
		w.clock.Step(time.Minute)
		w.try(failing("x"))
	}
	w.clock.Step(time.Minute)
	w.try(w.undo("it was deleted"))
	w.checkNotKept()
}

// TestQuiet: a conflict, an attempt that the end of the operator interrupts, and an object that is not kept any more.
func TestQuiet(t *testing.T) {
	w := newWorld(t)
	conflict := apierrors.NewConflict(schema.GroupResource{}, "b", errors.New("modified"))
	if after := w.try(func() error { return conflict }); after != 100*time.Millisecond {
		t.Errorf("after a conflict: again after %v", after)
	}
	w.clock.Step(time.Second)
	w.try(func() error { return nil })
	w.checkLog()
	ctx, cancel := context.WithCancel(t.Context())
	if after, err := w.Attempt(ctx, object, func() error { cancel(); return ctx.Err() }); after != 0 || err != nil {
		t.Errorf("at the end: again after %v, %v", after, err)
	}
	for range 5 {
		w.clock.Step(time.Minute)
		w.try(failing("x"))
	}
	w.SetAbsent(object, "a field")
	w.log.Reset()
	w.Forget(object)
	w.checkLog()
	w.checkNotKept()
	if len(w.Absent()) > 0 {
		t.Errorf("absent are %v", w.Absent())
	}
}

// TestAbsent: by what is absent, with one line for all objects.
func TestAbsent(t *testing.T) {
	w := newWorld(t)
	other := attempts.Object{Kind: "DeviceClass", Name: "c"}
	for range 2 {
		w.SetAbsent(object, "a field")
		w.SetAbsent(other, "a field")
	}
	w.checkLog("a field")
	if diff := cmp.Diff(map[string][]attempts.Object{"a field": {other, object}}, w.Absent()); diff != "" {
		t.Error(diff)
	}
	if !w.changed() {
		t.Error("want a signal")
	}
	w.SetAbsent(object, "")
	w.SetAbsent(other, "")
	if len(w.Absent()) > 0 || !w.changed() {
		t.Errorf("absent are %v", w.Absent())
	}
}
