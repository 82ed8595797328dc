package gate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func stop(code string) *Stop { return &Stop{Code: code, Message: code + " was found"} }

func TestDecide(t *testing.T) {
	enforce := Settings{Mode: Enforce, Timeout: 10 * time.Minute}
	opens := Settings{Mode: Enforce, Timeout: 10 * time.Minute, Opens: true}
	waits := Stop{Message: "waits for the validation pod of the operator"}
	noOperator := Stop{Code: NoOperator, Message: "no operator has made a validation pod within 10m0s; see that berth-operator runs " +
		"(kubectl -n NAMESPACE get deployment berth-operator), or set gate.onTimeout to open"}
	heldByPod := Stop{Code: HeldByPod, Message: "a pod that came after the gate had closed holds a GPU, and a validation needs all of them; " +
		"end that pod (berth gpus shows it)"}
	failed := Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")}
	tests := map[string]struct {
		settings Settings
		facts    Facts
		record   Record
		want     Decision
	}{
		"a node without GPUs": {enforce, Facts{Driver: stop("DRIVER_MISSING")}, Record{}, Decision{}},
		"off":                 {Settings{Mode: Disabled}, Facts{GPUs: true, Driver: stop("DRIVER_MISSING")}, Record{}, Decision{}},
		"no driver": {enforce, Facts{GPUs: true, Driver: stop("DRIVER_MISSING"), Runtime: stop("RUNTIME_CDI_OFF")}, Record{},
			Decision{State: Found, Stop: *stop("DRIVER_MISSING"), Tainted: true}},
		"no CDI": {enforce, Facts{GPUs: true, Runtime: stop("RUNTIME_CDI_OFF"), Key: "k"}, Record{},
			Decision{State: DriverReady, Stop: *stop("RUNTIME_CDI_OFF"), Tainted: true}},
		"no spec": {enforce, Facts{GPUs: true, Spec: stop("CDI_NODE_MISSING"), Key: "k"}, Record{},
			Decision{State: RuntimeReady, Stop: *stop("CDI_NODE_MISSING"), Tainted: true}},
		"not advertised": {enforce, Facts{GPUs: true, Advertised: &Stop{Message: "waits for the kubelet"}, Key: "k"}, Record{},
			Decision{State: SpecReady, Stop: Stop{Message: "waits for the kubelet"}, Tainted: true}},
		"held":          {enforce, Facts{GPUs: true, Key: "k"}, Record{}, Decision{State: Held, Stop: waits, Tainted: true}},
		"held, reports": {Settings{Mode: Report, Timeout: time.Hour}, Facts{GPUs: true, Key: "k"}, Record{}, Decision{State: Held, Stop: waits}},
		"passed": {enforce, Facts{GPUs: true, Key: "k", Outcome: &Outcome{Key: "k"}}, Record{},
			Decision{State: Validated, By: ByPod, Record: Record{Key: "k", By: ByPod}}},
		"passed for another key": {enforce, Facts{GPUs: true, Key: "k", Outcome: &Outcome{Key: "other"}}, Record{},
			Decision{State: Held, Stop: waits, Tainted: true}},
		"failed": {enforce, Facts{GPUs: true, Key: "k", Outcome: &Outcome{Key: "k", Failed: stop("VALIDATE_COUNT")}}, Record{},
			Decision{State: Held, Stop: *stop("VALIDATE_COUNT"), Tainted: true, Record: Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")}}},
		"failed, its pod is gone": {enforce, Facts{GPUs: true, Key: "k"}, Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")},
			Decision{State: Held, Stop: *stop("VALIDATE_COUNT"), Tainted: true, Record: Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")}}},
		"failed before a new driver": {enforce, Facts{GPUs: true, Key: "new"}, Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")},
			Decision{State: Held, Stop: waits, Tainted: true, Record: Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")}}},
		"in use": {enforce, Facts{GPUs: true, Key: "k", InUse: true}, Record{},
			Decision{State: Validated, By: ByAgent, Record: Record{Key: "k", By: ByAgent}}},
		"in use with a defect": {enforce, Facts{GPUs: true, Driver: stop("XID79"), Key: "k", InUse: true}, Record{},
			Decision{State: Found, Stop: *stop("XID79")}},
		"in use, and failed before":              {enforce, Facts{GPUs: true, Key: "k", InUse: true}, failed, Decision{State: Held, Stop: *stop("VALIDATE_COUNT"), Tainted: true, Record: failed}},
		"in use, and failed with another driver": {enforce, Facts{GPUs: true, Key: "new", InUse: true}, failed, Decision{State: Held, Stop: heldByPod, Tainted: true, Record: failed}},
		"in use, and opened by the agent although it had failed": {enforce, Facts{GPUs: true, Key: "k", InUse: true},
			Record{Key: "k", By: ByAgent, FailedKey: "k", Failed: stop("VALIDATE_COUNT")},
			Decision{State: Held, Stop: *stop("VALIDATE_COUNT"), Tainted: true,
				Record: Record{Key: "k", By: ByAgent, FailedKey: "k", Failed: stop("VALIDATE_COUNT")}}},
		"in use after the taint": {opens, Facts{GPUs: true, Key: "k", InUse: true, Waited: time.Hour}, Record{Tainted: true},
			Decision{State: Held, Stop: heldByPod, Tainted: true}},
		"in use after the taint, with a defect": {enforce, Facts{GPUs: true, Driver: stop("XID79"), Key: "k", InUse: true}, Record{Tainted: true},
			Decision{State: Found, Stop: *stop("XID79"), Tainted: true}},
		"in use after the taint, passes": {enforce, Facts{GPUs: true, Key: "k", InUse: true, Outcome: &Outcome{Key: "k"}}, Record{Tainted: true},
			Decision{State: Validated, By: ByPod, Record: Record{Key: "k", By: ByPod}}},
		"in use after the taint, which is switched off": {Settings{Mode: Disabled}, Facts{GPUs: true, Key: "k", InUse: true}, Record{Tainted: true}, Decision{}},
		"in use, reports": {Settings{Mode: Report, Timeout: time.Hour}, Facts{GPUs: true, Key: "k", InUse: true}, Record{Tainted: true},
			Decision{State: Validated, By: ByAgent, Record: Record{Key: "k", By: ByAgent}}},
		"the GPUs are gone for a moment": {enforce, Facts{InUse: true}, Record{Tainted: true}, Decision{Record: Record{Tainted: true}}},
		"failed with another driver, opens": {opens, Facts{GPUs: true, Key: "new", Waited: time.Hour}, failed,
			Decision{State: Held, Stop: noOperator, Tainted: true, Record: failed}},
		"validated by the agent, then failed": {enforce, Facts{GPUs: true, Key: "k", Outcome: &Outcome{Key: "k", Failed: stop("VALIDATE_CUDA_INIT")}},
			Record{Key: "k", By: ByAgent},
			Decision{State: Held, Stop: *stop("VALIDATE_CUDA_INIT"), Tainted: true, Record: Record{FailedKey: "k", Failed: stop("VALIDATE_CUDA_INIT")}}},
		"a GPU dies after the validation": {enforce, Facts{GPUs: true, Driver: stop("XID79"), Key: "k"}, Record{Key: "k", By: ByPod},
			Decision{State: Validated, By: ByPod, Record: Record{Key: "k", By: ByPod}}},
		"CDI is turned off after the validation": {enforce, Facts{GPUs: true, Runtime: stop("RUNTIME_CDI_OFF"), Key: "k"}, Record{Key: "k", By: ByPod},
			Decision{State: DriverReady, Stop: *stop("RUNTIME_CDI_OFF"), Tainted: true, Record: Record{Key: "k", By: ByPod}}},
		"the driver is gone after the validation": {enforce, Facts{GPUs: true, Driver: stop("DRIVER_MISSING")}, Record{Key: "k", By: ByPod},
			Decision{State: Found, Stop: *stop("DRIVER_MISSING"), Tainted: true, Record: Record{Key: "k", By: ByPod}}},
		"another driver": {enforce, Facts{GPUs: true, Key: "new"}, Record{Key: "k", By: ByPod},
			Decision{State: Held, Stop: waits, Tainted: true, Record: Record{Key: "k", By: ByPod}}},
		"no operator": {enforce, Facts{GPUs: true, Key: "k", Waited: 10 * time.Minute}, Record{}, Decision{State: Held, Tainted: true,
			Stop: Stop{Code: NoOperator, Message: "no operator has made a validation pod within 10m0s; see that berth-operator runs " +
				"(kubectl -n NAMESPACE get deployment berth-operator), or set gate.onTimeout to open"}}},
		"no operator, opens": {opens, Facts{GPUs: true, Key: "k", Waited: 10 * time.Minute}, Record{},
			Decision{State: Validated, By: ByTimeout, Record: Record{Key: "k", By: ByTimeout}}},
		"failed, opens": {opens, Facts{GPUs: true, Key: "k", Waited: time.Hour}, Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")},
			Decision{State: Held, Stop: *stop("VALIDATE_COUNT"), Tainted: true, Record: Record{FailedKey: "k", Failed: stop("VALIDATE_COUNT")}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.want.Record.Tainted = tc.want.Record.Tainted || tc.want.Tainted // Each taint is remembered.
			if diff := cmp.Diff(tc.want, Decide(tc.settings, tc.facts, tc.record)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKey(t *testing.T) {
	keys := map[string]string{}
	for _, of := range [][3]string{{"b", "580", "e"}, {"b2", "580", "e"}, {"b", "581", "e"}, {"b", "580", "e2"}, {"b", "580", ""}, {"b\n580", "e", ""}} {
		key := Key(of[0], of[1], of[2])
		if keys[key] != "" || key == "" {
			t.Errorf("Key(%q) = %q, which is also that of %s", of, key, keys[key])
		}
		keys[key] = of[0] + of[1]
	}
	if Key("", "580", "e") != "" || Key("b", "", "e") != "" {
		t.Error("a key without a boot, or without a driver")
	}
}

// TestDecideHolds walks a node through random facts and checks what holds after each.
func TestDecideHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SampledFrom([]*Stop{nil, nil, nil, stop("A"), stop("B")})
		keys := rapid.SampledFrom([]string{"", "k", "k", "k2"})
		settings := Settings{
			Mode: rapid.SampledFrom([]Mode{Enforce, Enforce, Report, Disabled}).Draw(t, "mode"), Timeout: time.Minute, Opens: rapid.Bool().Draw(t, "opens"),
		}
		var record Record
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			f := Facts{
				GPUs: rapid.IntRange(0, 9).Draw(t, "gpus") > 0, Driver: stops.Draw(t, "driver"), Runtime: stops.Draw(t, "runtime"),
				Spec: stops.Draw(t, "spec"), Advertised: stops.Draw(t, "advertised"), InUse: rapid.Bool().Draw(t, "in use"), Key: keys.Draw(t, "key"),
				Waited: time.Duration(rapid.IntRange(0, 120).Draw(t, "waited")) * time.Second,
			}
			if rapid.IntRange(0, 3).Draw(t, "ended") == 0 {
				f.Outcome = &Outcome{Key: keys.Draw(t, "of"), Failed: stops.Draw(t, "failed")}
			}
			d := Decide(settings, f, record)
			passed := f.Outcome != nil && f.Outcome.Failed == nil && f.Outcome.Key == f.Key && f.Key != ""
			failed := f.Outcome != nil && f.Outcome.Failed != nil && f.Outcome.Key == f.Key && f.Key != ""
			opened := f.InUse && !failed && (passed || record.Failed == nil) && (settings.Mode != Enforce || !record.Tainted)
			switch {
			case settings.Mode == Disabled || !f.GPUs:
				if d.State != None || d.Tainted {
					t.Fatalf("%+v: no gate is wanted: %+v", f, d)
				}
			case d.Tainted != d.Record.Tainted || d.Tainted != (settings.Mode == Enforce && d.State != Validated && !opened):
				t.Fatalf("%+v: taint %+v", f, d)
			case record.Tainted && settings.Mode == Enforce && !d.Tainted && !passed && !(d.By == ByTimeout && !f.InUse) && record.Key != f.Key:
				t.Fatalf("%+v: a taint has gone without a validation: %+v", f, d)
			case d.State == Validated && (f.Key == "" || d.Record.Key != f.Key || d.By == "" || f.Runtime != nil || d.Stop != (Stop{})):
				t.Fatalf("%+v: validated %+v", f, d)
			case d.State != Validated && d.Stop.Message == "":
				t.Fatalf("%+v: does not say why: %+v", f, d)
			case passed && f.Runtime == nil && d.State != Validated:
				t.Fatalf("%+v: passed, but %+v", f, d)
			case failed && d.State == Validated:
				t.Fatalf("%+v: failed, but %+v", f, d)
			case record.Key == f.Key && f.Key != "" && record.By != "" && record.Failed == nil && !failed && f.Runtime == nil && d.State != Validated:
				t.Fatalf("%+v: was validated, but %+v", f, d)
			}
			again := f
			again.Outcome = nil
			if next := Decide(settings, again, d.Record); next.State != d.State || next.Tainted != d.Tainted {
				t.Fatalf("%+v: %+v, and then %+v without anything new", f, d, next)
			}
			record = d.Record
		}
	})
}
