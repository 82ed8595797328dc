package health_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestTranscripts runs the transcripts in testdata: each command is one signal, its output the verdict after it. Times
// are seconds since the start.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var record health.Record
		var rules health.Rules
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			in := health.Input{Previous: record, Rules: rules}
			switch d.Cmd {
			case "new":
				record = health.Record{}
				return describe(&record, rules)
			case "rules":
				rules = rulesOf(t, d)
				return describe(&record, rules)
			case "restart":
				record = restarted(t, record)
				return describe(&record, rules)
			case "mig":
				var gi, ci int
				d.ScanArgs(t, "gi", &gi)
				d.ScanArgs(t, "ci", &ci)
				return words(record.MIG(rules, gi, ci))
			case "event":
				in.Events = []gpu.Event{eventOf(t, d)}
				in.Now = in.Events[0].Time
			case "reset":
				var at int
				d.ScanArgs(t, "t", &at)
				in.Events, in.Now = []gpu.Event{{Reset: true, Time: second(at)}}, second(at)
			case "scan":
				in = scanOf(t, d, in)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			record = health.Update(in)
			return describe(&record, rules)
		})
	})
}

// restarted returns the record that a new process reads.
func restarted(t *testing.T, record health.Record) health.Record {
	t.Helper()
	blob, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	var next health.Record
	if err := json.Unmarshal(blob, &next); err != nil {
		t.Fatal(err)
	}
	return next
}

// rulesOf parses: rules [disable=TEXT] [enable=TEXT] [CODE=class]...
func rulesOf(t *testing.T, d *datadriven.TestData) health.Rules {
	t.Helper()
	rules := health.Rules{Overrides: health.Overrides{}}
	var disable, enable string
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, ",")
		switch arg.Key {
		case "disable":
			disable = value
		case "enable":
			enable = value
		default:
			rules.Overrides[arg.Key] = health.Class(value)
		}
	}
	var err error
	if rules.Checks, err = health.ParseChecks(disable, enable); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if err := rules.Overrides.Check(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	return rules
}

// eventOf parses: event t=N xid=N|sxid=N [gi=N ci=N] [log] and the details below it.
func eventOf(t *testing.T, d *datadriven.TestData) gpu.Event {
	event := gpu.Event{GI: gpu.NoInstance, CI: gpu.NoInstance}
	var at int
	var xid int
	var sxid int
	d.MaybeScanArgs(t, "xid", &xid)
	d.MaybeScanArgs(t, "sxid", &sxid)
	d.ScanArgs(t, "t", &at)
	d.MaybeScanArgs(t, "gi", &event.GI)
	d.MaybeScanArgs(t, "ci", &event.CI)
	event.Code, event.Time = gpu.XID(uint64(xid)), second(at)
	if sxid != 0 {
		event.Code = gpu.SXID(uint64(sxid))
	}
	event.Log, event.Detail = d.HasArg("log"), d.Input
	return event
}

// scanOf parses: scan t=N [lost] [contains] [recovery=Name] [driver=NAME] [energy=N [persistent]] [seen=(CODE,...)]
// [events=(XID@N,...)] [instances=(GI/CI,...)].
func scanOf(t *testing.T, d *datadriven.TestData, in health.Input) health.Input {
	var at int
	d.ScanArgs(t, "t", &at)
	in.ScanBegan, in.Now = second(at), second(at)
	in.Answers = !d.HasArg("lost")
	var recovery string
	d.MaybeScanArgs(t, "recovery", &recovery)
	in.Recovery = gpu.Recovery(recovery)
	in.Contains = d.HasArg("contains")
	var energy int
	d.MaybeScanArgs(t, "energy", &energy)
	d.MaybeScanArgs(t, "driver", &in.Life.Driver)
	in.Life.Energy, in.Life.EnergyKnown, in.Life.Persistent = uint64(energy), d.HasArg("energy"), d.HasArg("persistent")
	for _, arg := range d.CmdArgs {
		for _, value := range arg.Vals {
			switch arg.Key {
			case "seen":
				in.Seen = append(in.Seen, gpu.Cause{Code: value, Message: "seen"})
			case "instances":
				var one health.Instance
				if _, err := fmt.Sscanf(value, "%d/%d", &one.GI, &one.CI); err != nil {
					d.Fatalf(t, "instance %q: want GI/CI", value)
				}
				in.Instances = append(in.Instances, one)
			case "events":
				xid, when, _ := strings.Cut(value, "@")
				x, err1 := strconv.ParseUint(xid, 10, 64)
				s, err2 := strconv.Atoi(when)
				if err1 != nil || err2 != nil {
					d.Fatalf(t, "event %q: want XID@SECOND", value)
				}
				in.Events = append(in.Events, gpu.Event{Code: gpu.XID(x), Time: second(s), GI: gpu.NoInstance, CI: gpu.NoInstance})
			}
		}
	}
	return in
}

func second(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// describe prints the GPU's verdict.
func describe(record *health.Record, rules health.Rules) string { return words(record.Whole(rules)) }

func words(h gpu.Health) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s", h.State)
	if h.Recovery != "" {
		fmt.Fprintf(&out, " recovery=%s", h.Recovery)
	}
	out.WriteString("\n")
	for _, cause := range h.Causes {
		fmt.Fprintf(&out, "  %s since %gs: %s\n", cause.Code, cause.Since.Sub(start).Seconds(), cause.Message)
	}
	return out.String()
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

// TestXIDStormIsBounded checks that many XIDs of one GPU do not grow a snapshot without limit.
func TestXIDStormIsBounded(t *testing.T) {
	var record health.Record
	for xid := range uint64(500) {
		record = health.Update(health.Input{
			Previous: record, Events: []gpu.Event{{Code: gpu.XID(xid), Time: start, GI: gpu.NoInstance, CI: gpu.NoInstance}}, Now: start,
		})
	}
	// The first XIDs only need inspection; the one that needs a reboot is beyond the bound.
	if verdict := record.Whole(health.Rules{}); len(verdict.Causes) != 32 || verdict.OK() {
		t.Errorf("got %d causes, state %s; want 32, and not allocated", len(verdict.Causes), verdict.State)
	}
}
