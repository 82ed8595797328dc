package problemlist_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/problemlist"
)

// newList returns a list at time 100 s, with its log.
func newList() (*problemlist.List, *testingclock.FakePassiveClock, *bytes.Buffer) {
	clock, text := testingclock.NewFakePassiveClock(time.Unix(100, 0)), &bytes.Buffer{}
	return problemlist.New(clock, slog.New(slog.NewTextHandler(text, nil)), func(gpu.Cause) {}), clock, text
}

func TestSince(t *testing.T) {
	l, clock, _ := newList()
	l.SetError("cdi", "CDI", errors.New("no space"))
	l.SetError("checkpoint", "CHECKPOINT", errors.New("corrupt"))
	clock.SetTime(time.Unix(200, 0))
	l.SetError("cdi", "CDI", errors.New("no space"))
	l.SetError("checkpoint", "CHECKPOINT", nil)
	want := []gpu.Cause{{Code: "CDI", Message: "no space", Since: time.Unix(100, 0)}}
	if diff := cmp.Diff(want, l.All()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	l.Set("cdi", gpu.Cause{Code: "CDI", Message: "no driver"})
	if got := l.All(); len(got) != 1 || !got[0].Since.Equal(time.Unix(200, 0)) {
		t.Errorf("another problem of the same source is %v, want it to begin now", got)
	}
}

func TestSourcesAreIndependentAndOrdered(t *testing.T) {
	l, _, _ := newList()
	l.Set("b", gpu.Cause{Code: "Z", Message: "1"}, gpu.Cause{Code: "A", Message: "2"})
	l.Set("a", gpu.Cause{Code: "A", Message: "1"})
	texts := func() string {
		var out []string
		for _, c := range l.All() {
			out = append(out, c.Code+c.Message)
		}
		return strings.Join(out, " ")
	}
	if got := texts(); got != "A1 A2 Z1" {
		t.Errorf("problems are %q, want them by code and message", got)
	}
	l.Set("b", gpu.Cause{Code: "Z", Message: "1"})
	if got := texts(); got != "A1 Z1" {
		t.Errorf("problems are %q, want only the one of b replaced", got)
	}
}

// TestChangesAreSignalledAndLoggedOnce: a source that reports the same again wakes no subscriber and logs nothing.
func TestChangesAreSignalledAndLoggedOnce(t *testing.T) {
	l, _, text := newList()
	s := l.Subscribe()
	signalled := func() bool {
		select {
		case <-s.C():
			return true
		default:
			return false
		}
	}
	if !signalled() {
		t.Error("a new subscription is not signalled")
	}
	one, two := gpu.Cause{Code: "A", Message: "one"}, gpu.Cause{Code: "A", Message: "two"}
	steps := []struct {
		causes []gpu.Cause
		signal bool
		log    string
	}{
		{nil, false, ""},
		{[]gpu.Cause{one}, true, "level=WARN msg=one code=A source=s"},
		{[]gpu.Cause{one}, false, ""},
		{[]gpu.Cause{one, two}, true, "level=WARN msg=two code=A source=s"},
		{[]gpu.Cause{two}, true, ""},
		{nil, true, `level=INFO msg="Problem resolved" codes=A source=s`},
		{nil, false, ""},
	}
	for i, step := range steps {
		text.Reset()
		l.Set("s", step.causes...)
		if got := signalled(); got != step.signal {
			t.Errorf("step %d: signalled %v, want %v", i, got, step.signal)
		}
		_, line, _ := strings.Cut(strings.TrimSpace(text.String()), " ")
		if line != step.log {
			t.Errorf("step %d: logged %q, want %q", i, line, step.log)
		}
	}
	s.Close()
	l.Set("s", one)
	if signalled() {
		t.Error("a closed subscription was signalled")
	}
}

// TestLevelIsTheSeverity checks that the log has a problem at the level that its severity in the catalogue asks for.
func TestLevelIsTheSeverity(t *testing.T) {
	for code, want := range map[string]string{
		"LEDGER_UNWRITABLE": "level=ERROR", "LEDGER_CORRUPT": "level=WARN", "XID43": "level=INFO", "NO_SUCH_CODE": "level=WARN",
	} {
		l, _, text := newList()
		l.Set("source", gpu.Cause{Code: code, Message: "what is wrong"})
		if got := text.String(); !strings.Contains(got, want) || !strings.Contains(got, "code="+code) {
			t.Errorf("%s is logged as %q, want %s", code, got, want)
		}
	}
}
