package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const points = `# TYPE scheduler_framework_extension_point_duration_seconds histogram
scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreScore",profile="p",status="Success"} 0.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="PreScore",profile="p",status="Success"} 90
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Score",profile="p",status="Success"} 1.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="Score",profile="p",status="Success"} 100
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Success"} 70
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="p",status="Success"} 100
# TYPE scheduler_batch_attempts_total counter
scheduler_batch_attempts_total{profile="p",result="hint_used"} 11
scheduler_batch_attempts_total{profile="p",result="no_hint"} 22
`

const normalize = `# TYPE scheduler_plugin_execution_duration_seconds histogram
scheduler_plugin_execution_duration_seconds_sum{extension_point="ScoreExtensionNormalize",plugin="BerthPlacement",status="Success"} 0.004
scheduler_plugin_execution_duration_seconds_count{extension_point="ScoreExtensionNormalize",plugin="BerthPlacement",status="Success"} 4
scheduler_plugin_execution_duration_seconds_sum{extension_point="Score",plugin="BerthPlacement",status="Success"} 0.000002
scheduler_plugin_execution_duration_seconds_count{extension_point="Score",plugin="BerthPlacement",status="Success"} 10
scheduler_plugin_execution_duration_seconds_sum{extension_point="Score",plugin="ImageLocality",status="Success"} 77
scheduler_plugin_execution_duration_seconds_count{extension_point="Score",plugin="ImageLocality",status="Success"} 10
`

const evaluations = `# TYPE scheduler_plugin_evaluation_total counter
scheduler_plugin_evaluation_total{extension_point="Score",plugin="BerthPlacement",profile="p"} 5000
scheduler_plugin_evaluation_total{extension_point="Score",plugin="ImageLocality",profile="p"} 9999
`

const preScore = `scheduler_plugin_execution_duration_seconds_sum{extension_point="PreScore",plugin="BerthPlacement",status="Success"} 0.01
scheduler_plugin_execution_duration_seconds_count{extension_point="PreScore",plugin="BerthPlacement",status="Success"} 5
`

func TestParse(t *testing.T) {
	all := Scoring{AllPlugins: 2 * time.Second, Reused: 11}
	without := all
	without.Score = Calls{Count: 5000, Samples: 10, Mean: 200 * time.Nanosecond}
	without.Normalize = Calls{Count: 100, Samples: 4, Mean: time.Millisecond}
	with := without
	with.PreScore = Calls{Count: 80, Samples: 5, Mean: 2 * time.Millisecond}
	with.Normalize.Count = 80
	tests := map[string]struct {
		text     string
		want     Scoring
		wantTime time.Duration
	}{
		"no plugin":            {text: points, want: all},
		"plugin":               {text: points + normalize + evaluations, want: without, wantTime: 101 * time.Millisecond},
		"plugin with PreScore": {want: with, wantTime: 241 * time.Millisecond},
	}
	pre := tests["plugin with PreScore"]
	pre.text = points + normalize + preScore + evaluations +
		"scheduler_plugin_evaluation_total{extension_point=\"PreScore\",plugin=\"BerthPlacement\",profile=\"p\"} 80\n"
	tests["plugin with PreScore"] = pre
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("parse (-want +got):\n%s", diff)
			}
			if got.PluginTime() != tc.wantTime {
				t.Errorf("PluginTime = %v, want %v", got.PluginTime(), tc.wantTime)
			}
		})
	}
	if _, err := parse(strings.NewReader("no metrics {\n")); err == nil {
		t.Error("no error for what is no metrics, want one")
	}
}

func TestConfigurationNamesTheProfile(t *testing.T) {
	for _, k := range []Kind{Stock("kube-scheduler"), Ours("berth-scheduler")} {
		text := k.configuration("/a/kubeconfig")
		for _, want := range []string{"kubeconfig: /a/kubeconfig\n", "- schedulerName: " + k.ProfileName} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", k.Name, want, text)
			}
		}
		if got := strings.Contains(text, Plugin); got != (k.Name == "ours") {
			t.Errorf("%s: names %s: %v", k.Name, Plugin, got)
		}
	}
}
