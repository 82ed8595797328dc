package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const points = `# TYPE scheduler_framework_extension_point_duration_seconds histogram
scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreFilter",profile="p",status="Success"} 0.25
scheduler_framework_extension_point_duration_seconds_count{extension_point="PreFilter",profile="p",status="Success"} 90
scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreFilter",profile="p",status="Unschedulable"} 0.25
scheduler_framework_extension_point_duration_seconds_count{extension_point="PreFilter",profile="p",status="Unschedulable"} 90
scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreScore",profile="p",status="Success"} 0.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="PreScore",profile="p",status="Success"} 90
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Score",profile="p",status="Success"} 1.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="Score",profile="p",status="Success"} 100
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Success"} 70
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="p",status="Success"} 100
`

const batches = `# TYPE scheduler_batch_attempts_total counter
scheduler_batch_attempts_total{profile="p",result="hint_used"} 11
scheduler_batch_attempts_total{profile="p",result="no_hint"} 22
`

const evaluations = `# TYPE scheduler_plugin_evaluation_total counter
scheduler_plugin_evaluation_total{extension_point="Score",plugin="BerthPlacement",profile="p"} 5000
scheduler_plugin_evaluation_total{extension_point="Filter",plugin="BerthPlacement",profile="p"} 777
scheduler_plugin_evaluation_total{extension_point="Score",plugin="ImageLocality",profile="p"} 9999
`

const attempts = `# TYPE scheduler_podgroup_schedule_attempts_total counter
scheduler_podgroup_schedule_attempts_total{profile="p",result="scheduled"} 5
scheduler_podgroup_schedule_attempts_total{profile="p",result="unschedulable"} 2
# TYPE scheduler_podgroup_scheduling_algorithm_duration_seconds histogram
scheduler_podgroup_scheduling_algorithm_duration_seconds_sum 0.5
scheduler_podgroup_scheduling_algorithm_duration_seconds_count 7
# TYPE scheduler_podgroup_scheduling_attempt_duration_seconds histogram
scheduler_podgroup_scheduling_attempt_duration_seconds_sum{profile="p",result="scheduled"} 1.5
scheduler_podgroup_scheduling_attempt_duration_seconds_count{profile="p",result="scheduled"} 5
`

func TestParse(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    Counts
		wantErr bool
	}{
		"nothing":         {},
		"extension point": {text: points, want: Counts{Scoring: 2500 * time.Millisecond}},
		"batches":         {text: batches, want: Counts{Reused: 11}},
		"gangs":           {text: attempts, want: Counts{GangAttempts: 7, GangDecision: 500 * time.Millisecond, GangCycle: 1500 * time.Millisecond}},
		"calls":           {text: evaluations, want: Counts{PluginCalls: 5777}},
		"all":             {text: points + batches + evaluations, want: Counts{Scoring: 2500 * time.Millisecond, Reused: 11, PluginCalls: 5777}},
		"no metrics":      {text: "no metrics {\n", wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(tc.text))
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("parse = %+v, %v; want %+v, error: %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestFor(t *testing.T) {
	tests := map[string]struct {
		kind     Kind
		gangs    bool
		topology bool
		want     []string
	}{
		"stock, no gangs":            {kind: Stock()},
		"stock, gangs":               {kind: Stock(), gangs: true, want: []string{"GenericWorkload"}},
		"stock, gangs within a rack": {kind: Stock(), gangs: true, topology: true, want: []string{"GenericWorkload", "TopologyAwareWorkloadScheduling"}},
		"ours":                       {kind: Ours(), gangs: true, topology: true},
		"ours in tree":               {kind: OursInTree(), gangs: true, want: []string{"GenericWorkload"}},
		"stock, a load without it":   {kind: Stock().For(true, true)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.kind.For(tc.gangs, tc.topology).Gates; !slices.Equal(got, tc.want) {
				t.Errorf("gates %q, want %q", got, tc.want)
			}
		})
	}
}

func TestConfigurationNamesTheProfile(t *testing.T) {
	for _, k := range []Kind{Stock("kube-scheduler"), Ours("berth-scheduler"), OursInTree("berth-scheduler")} {
		text := k.configuration("/a/kubeconfig")
		for _, want := range []string{"kubeconfig: /a/kubeconfig\n", "- schedulerName: " + k.ProfileName} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", k.Name, want, text)
			}
		}
		if got := strings.Contains(text, Plugin); got != (k.Name != "stock") {
			t.Errorf("%s: names %s: %v", k.Name, Plugin, got)
		}
	}
}
