package health_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/health"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestTranscripts plays the stories in testdata: each command is one signal, the
// answer is the verdict after it. Times are seconds since the start.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var verdict gpu.Health
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			in := health.Input{Previous: verdict}
			switch d.Cmd {
			case "new":
				verdict = gpu.Health{}
				return describe(verdict)
			case "event":
				in.Events = []gpu.Event{eventOf(t, d)}
				in.Now = in.Events[0].Time
			case "scan":
				in = scanOf(t, d, in)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			verdict = health.Judge(in)
			return describe(verdict)
		})
	})
}

func eventOf(t *testing.T, d *datadriven.TestData) gpu.Event {
	event := gpu.Event{GI: gpu.NoInstance, CI: gpu.NoInstance}
	var at int
	var xid int
	d.ScanArgs(t, "xid", &xid)
	d.ScanArgs(t, "t", &at)
	d.MaybeScanArgs(t, "gi", &event.GI)
	d.MaybeScanArgs(t, "ci", &event.CI)
	event.XID, event.Time = uint64(xid), second(at)
	return event
}

// scanOf reads: scan t=N [lost] [recovery=Name] [seen=(CODE,...)] [events=(XID@N,...)].
func scanOf(t *testing.T, d *datadriven.TestData, in health.Input) health.Input {
	var at int
	d.ScanArgs(t, "t", &at)
	in.ScanBegan, in.Now = second(at), second(at)
	in.Answers = !d.HasArg("lost")
	var recovery string
	d.MaybeScanArgs(t, "recovery", &recovery)
	in.Recovery = gpu.Recovery(recovery)
	for _, arg := range d.CmdArgs {
		for _, value := range arg.Vals {
			switch arg.Key {
			case "seen":
				in.Seen = append(in.Seen, gpu.Cause{Code: value, Message: "seen"})
			case "events":
				xid, when, _ := strings.Cut(value, "@")
				x, err1 := strconv.ParseUint(xid, 10, 64)
				s, err2 := strconv.Atoi(when)
				if err1 != nil || err2 != nil {
					d.Fatalf(t, "event %q: want XID@SECOND", value)
				}
				in.Events = append(in.Events, gpu.Event{XID: x, Time: second(s), GI: gpu.NoInstance, CI: gpu.NoInstance})
			}
		}
	}
	return in
}

func second(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

func describe(h gpu.Health) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s", cmpOr(string(h.State), "(new)"))
	if h.Recovery != "" {
		fmt.Fprintf(&out, " recovery=%s", h.Recovery)
	}
	out.WriteString("\n")
	for _, cause := range h.Causes {
		fmt.Fprintf(&out, "  %s since %gs: %s\n", cause.Code, cause.Since.Sub(start).Seconds(), cause.Message)
	}
	return out.String()
}

func cmpOr(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// twin judges from the whole history, the slow and simple way.
type twin struct {
	standing map[uint64][]time.Time // events since the XID was last disproved
	levels   map[string]time.Time
	gone     bool
	recovery gpu.Recovery
}

func (w *twin) event(xid uint64, at time.Time) {
	if !slices.Contains([]uint64{13, 31, 43, 45, 68, 109}, xid) {
		w.standing[xid] = append(w.standing[xid], at)
	}
}

func (w *twin) scan(at time.Time, answers bool, recovery gpu.Recovery, levels []string) {
	wasGone := w.gone
	w.gone, w.recovery = !answers, recovery
	for xid, times := range w.standing {
		latest := slices.MaxFunc(times, time.Time.Compare)
		verified := recovery == gpu.RecoveryNone && at.Sub(latest) > health.Settle
		reset := wasGone && at.After(latest)
		if answers && (verified || reset) {
			delete(w.standing, xid)
		}
	}
	next := map[string]time.Time{}
	for _, code := range levels {
		next[code] = at
		if since, ok := w.levels[code]; ok {
			next[code] = since
		}
	}
	w.levels = next
}

func (w *twin) verdict() gpu.Health {
	out := gpu.Health{State: gpu.Healthy, Recovery: w.recovery}
	for xid, times := range w.standing {
		out.Causes = append(out.Causes, gpu.Cause{
			Code: fmt.Sprintf("XID%d", xid), Message: fmt.Sprintf("the driver reported XID %d", xid), Since: times[0],
		})
	}
	for code, since := range w.levels {
		out.Causes = append(out.Causes, gpu.Cause{Code: code, Message: "seen", Since: since})
	}
	slices.SortFunc(out.Causes, health.CompareCauses)
	if len(out.Causes) > 0 {
		out.State = gpu.Unhealthy
	}
	if w.gone {
		out.State = gpu.Gone
	}
	return out
}

// TestJudgeMatchesTwin plays random histories. The events that a scan may not be late
// enough to disprove are handed to it again, as the inventory does.
func TestJudgeMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &twin{standing: map[uint64][]time.Time{}, levels: map[string]time.Time{}}
		var got gpu.Health
		var recent []gpu.Event
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 1500).Draw(t, "pause")) * time.Millisecond)
			if rapid.Bool().Draw(t, "is event") {
				xid := rapid.SampledFrom([]uint64{0, 13, 48, 79}).Draw(t, "xid")
				event := gpu.Event{XID: xid, Time: now, GI: gpu.NoInstance, CI: gpu.NoInstance}
				recent = append(recent, event)
				got = health.Judge(health.Input{Previous: got, Events: []gpu.Event{event}, Now: now})
				if xid != 0 {
					w.event(xid, now)
				}
				if got.State == gpu.Healthy && w.gone {
					t.Fatalf("an event made a lost card well")
				}
			} else {
				answers := rapid.Bool().Draw(t, "answers")
				recovery := rapid.SampledFrom([]gpu.Recovery{"", gpu.RecoveryNone, gpu.RecoveryGPUReset}).Draw(t, "recovery")
				levels := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"A", "B", "C"}), 0, 3, rapid.ID).Draw(t, "levels")
				in := health.Input{
					Previous: got, ScanBegan: now, Now: now, Answers: answers, Recovery: recovery, Events: recent,
				}
				for _, code := range levels {
					in.Seen = append(in.Seen, gpu.Cause{Code: code, Message: "seen"})
				}
				got = health.Judge(in)
				w.scan(now, answers, recovery, levels)
				recent = slices.DeleteFunc(recent, func(event gpu.Event) bool { return len(w.standing[event.XID]) == 0 })
			}
			if diff := cmp.Diff(w.verdict(), got); diff != "" {
				t.Fatalf("verdict (-twin +judge):\n%s", diff)
			}
		}
	})
}

func TestXIDOf(t *testing.T) {
	for name, test := range map[string]struct {
		code string
		want uint64
		ok   bool
	}{
		"xid":       {"XID79", 79, true},
		"no digits": {"XID", 0, false},
		"level":     {"GPU_LOST", 0, false},
		"words":     {"XIDs", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := health.XIDOf(test.code)
			if got != test.want && test.ok || ok != test.ok {
				t.Errorf("XIDOf(%q) = %d, %v; want %d, %v", test.code, got, ok, test.want, test.ok)
			}
		})
	}
}

// TestXIDStormIsBounded keeps one card from growing a snapshot without end.
func TestXIDStormIsBounded(t *testing.T) {
	var verdict gpu.Health
	for xid := range uint64(500) {
		verdict = health.Judge(health.Input{
			Previous: verdict, Events: []gpu.Event{{XID: xid, Time: start}}, Now: start,
		})
	}
	if len(verdict.Causes) > 32 || verdict.State != gpu.Unhealthy {
		t.Errorf("got %d causes, state %s; want at most 32, Unhealthy", len(verdict.Causes), verdict.State)
	}
}
