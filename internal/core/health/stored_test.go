package health_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// firstForm is a record as Berth wrote it before codes had a kind.
const firstForm = `{"standing":[` +
	`{"xid":79,"gi":-1,"ci":-1,"first":"2026-01-01T00:00:00Z","last":"2026-01-01T00:00:10Z","log":true,"answered":1,"life":{"driver":"1"}},` +
	`{"sxid":12028,"gi":-1,"ci":-1,"first":"2026-01-01T00:00:00Z","last":"2026-01-01T00:00:00Z"}],` +
	`"incidents":[{"xid":79,"count":2,"last":"2026-01-01T00:00:10Z"},{"sxid":12028,"count":1,"last":"2026-01-01T00:00:00Z"}]}`

// TestRecordOutlastsUpgradeAndRollback reads a record in its first form and writes the same bytes.
func TestRecordOutlastsUpgradeAndRollback(t *testing.T) {
	var record health.Record
	if err := json.Unmarshal([]byte(firstForm), &record); err != nil {
		t.Fatal(err)
	}
	want := health.Record{
		Standing: []health.Standing{
			{
				Code: gpu.XID(79), GI: gpu.NoInstance, CI: gpu.NoInstance, First: start, Last: second(10), Log: true, Answered: 1,
				Life: gpu.Life{Driver: "1"},
			},
			{Code: gpu.SXID(12028), GI: gpu.NoInstance, CI: gpu.NoInstance, First: start, Last: start},
		},
		Incidents: []health.Incident{{Code: gpu.XID(79), Count: 2, Last: second(10)}, {Code: gpu.SXID(12028), Count: 1, Last: start}},
	}
	if diff := cmp.Diff(want, record); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	written, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(firstForm, string(written)); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if got := record.Whole(health.Rules{}); got.State != gpu.NeedsReboot {
		t.Errorf("the GPU is %s, want NeedsReboot", got.State)
	}
}

// TestCodeOfAnotherKind has a code without a catalogue: it needs an administrator, persists over a restart, and is not
// an XID.
func TestCodeOfAnotherKind(t *testing.T) {
	code := gpu.Code{Kind: "ras", Number: 13}
	record := health.Update(health.Input{
		Events: []gpu.Event{{Code: code, GI: gpu.NoInstance, CI: gpu.NoInstance, Time: start}}, Now: start,
	})
	record = restarted(t, record)
	if !record.Has(code) || record.Has(gpu.XID(13)) {
		t.Errorf("the errors are %+v; want %s alone", record.Standing, code)
	}
	verdict := record.Whole(health.Rules{})
	if verdict.State != gpu.Unhealthy || len(verdict.Causes) != 1 || verdict.Causes[0].Code != "RAS13" ||
		verdict.Causes[0].Message != "the driver reported the error code RAS13" {
		t.Errorf("the verdict is %+v; want Unhealthy because of RAS13", verdict)
	}
	if got, want := gpu.XID(79).String(), health.XIDCode(79); got != want {
		t.Errorf("an XID is written %s and %s", got, want)
	}
	if incident := restarted(t, health.Record{Incidents: []health.Incident{{Code: code, Count: 3, Last: start}}}).Incidents[0]; incident.Code != code || incident.Count != 3 {
		t.Errorf("the incident is %+v after a restart", incident)
	}
}
