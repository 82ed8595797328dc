package health_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// TestCatalogue records for each XID and each level cause on one MIG device the state of the device, its sibling and the GPU, after
// the fault and after the recovery.
func TestCatalogue(t *testing.T) {
	datadriven.RunTest(t, "testcatalogue/stories", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "xids":
			for _, xid := range health.XIDs() {
				fmt.Fprintf(&out, "%d %s: %s\n", xid.Code, xid.Mnemonic, xidStory(xid.Code))
			}
			fmt.Fprintf(&out, "9999: %s\n", xidStory(9999))
		case "facts":
			for _, fact := range health.Facts() {
				fmt.Fprintf(&out, "%s: %s\n", fact.Code, factStory(fact.Code, ""))
			}
			fmt.Fprintf(&out, "UNHEARD_OF: %s\n", factStory("UNHEARD_OF", ""))
		case "recovery":
			for _, action := range []gpu.Recovery{
				gpu.RecoveryGPUReset, gpu.RecoveryNodeReboot, gpu.RecoveryDrainP2P, gpu.RecoveryDrainAndReset,
				gpu.RecoveryIMEXDomain, gpu.RecoveryBusReset, gpu.RecoverySystemReboot, "Action42",
			} {
				fmt.Fprintf(&out, "%s: %s\n", action, factStory("RECOVERY_ACTION", action))
			}
		case "contained":
			for _, code := range []string{"ECC_DOUBLE_BIT", "ECC_SRAM_UNCORRECTABLE", "ROW_REMAP_PENDING", "ROW_REMAP_FAILURE"} {
				for _, action := range []gpu.Recovery{"", gpu.RecoveryNone, gpu.RecoveryDrainAndReset, gpu.RecoveryGPUReset, gpu.RecoveryNodeReboot} {
					fmt.Fprintf(&out, "%s, action %q: %s\n", code, action, factStory(code, action))
				}
			}
		}
		return out.String()
	})
}

func xidStory(xid uint64) string {
	event := gpu.Event{Code: gpu.XID(xid), GI: 3, CI: 0, Time: second(10)}
	record := health.Update(health.Input{Events: []gpu.Event{event}, Now: second(10)})
	here, sibling := record.MIG(health.Rules{}, 3, 0), record.MIG(health.Rules{}, 4, 0)
	story := fmt.Sprintf("device %s, sibling %s, GPU %s", here.State, sibling.State, record.Whole(health.Rules{}).State)
	if len(here.Causes) == 0 {
		return story
	}
	there := []health.Instance{{GI: 3}, {GI: 4}}
	scan := func(at int, recovery gpu.Recovery, answers bool) gpu.State {
		record = health.Update(health.Input{
			Previous: record, ScanBegan: second(at), Now: second(at), Answers: answers, Recovery: recovery, Instances: there,
		})
		return record.MIG(health.Rules{}, 3, 0).State
	}
	story += fmt.Sprintf("; too soon %s", scan(11, gpu.RecoveryNone, true))
	early := record
	story += fmt.Sprintf("; driver silent for an hour %s", scan(3600, "", true))
	before := record
	story += fmt.Sprintf("; no action needed %s", scan(3605, gpu.RecoveryNone, true))
	story += fmt.Sprintf(", for 5 minutes %s", scan(3905, gpu.RecoveryNone, true))
	record = before
	scan(3605, "", false)
	story += fmt.Sprintf("; away and back %s", scan(3610, "", true))
	record = early
	story += fmt.Sprintf("; action named %s", scan(15, gpu.RecoveryGPUReset, true))
	story += fmt.Sprintf(" and taken back %s", scan(20, gpu.RecoveryNone, true))
	record = health.Update(health.Input{Previous: early, Events: []gpu.Event{{Reset: true, Time: second(12)}}, Now: second(12)})
	return story + fmt.Sprintf("; reset %s", scan(13, "", true))
}

func factStory(code string, recovery gpu.Recovery) string {
	in := health.Input{ScanBegan: second(1), Now: second(1), Answers: true, Recovery: recovery, Seen: []gpu.Cause{{Code: code, Message: "seen"}}}
	record := health.Update(in)
	g, device := record.Whole(health.Rules{}), record.MIG(health.Rules{}, 3, 0)
	story := fmt.Sprintf("GPU %s, device %s, allocatable %v", g.State, device.State, g.OK())
	in.Contains = true
	record = health.Update(in)
	if contained := record.Whole(health.Rules{}); contained.State != g.State {
		story += fmt.Sprintf(", contained %s, allocatable %v", contained.State, contained.OK())
	}
	record = health.Update(health.Input{Previous: record, ScanBegan: second(6), Now: second(6), Answers: true})
	return story + fmt.Sprintf("; not found any more %s. %s", record.Whole(health.Rules{}).State, g.Causes[0].Recover)
}

func TestParseChecks(t *testing.T) {
	for name, test := range map[string]struct {
		disable string
		enable  string
		// counted and dropped are XIDs that must and must not count then; facts reports whether level causes do.
		counted []uint64
		dropped []uint64
		facts   bool
		err     string
	}{
		"default":                               {counted: []uint64{48, 79, 94}, dropped: []uint64{13, 31, 43, 45, 68, 109}, facts: true},
		"one more":                              {disable: " 94, 79 ", counted: []uint64{48}, dropped: []uint64{13, 79, 94}, facts: true},
		"xids":                                  {disable: "xids", dropped: []uint64{13, 48, 79}, facts: true},
		"all":                                   {disable: "all", dropped: []uint64{13, 48, 79}},
		"all in capitals":                       {disable: "ALL", dropped: []uint64{48}},
		"enable a default":                      {enable: "13", counted: []uint64{13, 48}, dropped: []uint64{31}, facts: true},
		"enabled wins":                          {disable: "xids", enable: "79", counted: []uint64{79}, dropped: []uint64{48}, facts: true},
		"enabled wins by code":                  {disable: "79", enable: "79", counted: []uint64{79}, facts: true},
		"all, and one":                          {disable: "all", enable: "48", counted: []uint64{48}, dropped: []uint64{79}},
		"enable every XID":                      {enable: "xids", counted: []uint64{13, 31, 48, 109}, facts: true},
		"every XID but one":                     {disable: "31", enable: "xids", counted: []uint64{13, 48}, dropped: []uint64{31}, facts: true},
		"enable all":                            {disable: "all", enable: "all", counted: []uint64{13, 48}, facts: true},
		"empty words":                           {disable: ",,48,", dropped: []uint64{48}, facts: true},
		"enabled, and ignored by the catalogue": {enable: "63", counted: []uint64{63}, facts: true},
		"a word":                                {disable: "ecc", err: `read DP_DISABLE_HEALTHCHECKS: "ecc" is not an XID; want all, xids, or XIDs separated by commas, as in 13,31`},
		"zero":                                  {enable: "0", err: `read DP_ENABLE_HEALTHCHECKS: "0" is not an XID; want all, xids, or XIDs separated by commas, as in 13,31`},
	} {
		t.Run(name, func(t *testing.T) {
			checks, err := health.ParseChecks(test.disable, test.enable)
			if fmt.Sprint(err) != test.err && (err != nil || test.err != "") {
				t.Fatalf("error %v; want %s", err, test.err)
			}
			if err != nil {
				return
			}
			rules := health.Rules{Checks: checks}
			for _, list := range []struct {
				codes []uint64
				want  bool
			}{{test.counted, true}, {test.dropped, false}} {
				for _, xid := range list.codes {
					record := health.Update(health.Input{
						Events: []gpu.Event{{Code: gpu.XID(xid), GI: gpu.NoInstance, CI: gpu.NoInstance, Time: start}}, Now: start, Rules: rules,
					})
					if verdict := record.Whole(rules); !verdict.OK() != list.want {
						t.Errorf("XID %d: %s; counts should be %v", xid, verdict.State, list.want)
					}
				}
			}
			record := health.Update(health.Input{ScanBegan: start, Answers: true, Seen: []gpu.Cause{{Code: "ECC_DOUBLE_BIT"}}, Rules: rules})
			if verdict := record.Whole(rules); verdict.OK() == test.facts {
				t.Errorf("ECC errors: %s; facts should count: %v", verdict.State, test.facts)
			}
		})
	}
}

func TestOverridesCheck(t *testing.T) {
	for name, test := range map[string]struct {
		overrides health.Overrides
		want      string
	}{
		"none":         {nil, "<nil>"},
		"an XID":       {health.Overrides{"XID94": health.Ignore}, "<nil>"},
		"a fact":       {health.Overrides{"NVLINK_DOWN": health.Reset}, "<nil>"},
		"no such code": {health.Overrides{"NVLINK": health.Reset}, "override the class of NVLINK: no such cause exists; want XID and a number, or a code such as ECC_DOUBLE_BIT"},
		"no such class": {health.Overrides{"XID94": "fatal"},
			`override the class of XID94: "fatal" is not a class; want one of [ignore degrade restart-app drain inspect reset reboot]`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, fmt.Sprint(test.overrides.Check())); diff != "" {
				t.Error(diff)
			}
		})
	}
}
