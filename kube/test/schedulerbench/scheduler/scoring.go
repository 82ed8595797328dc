package scheduler

import (
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Counts is what a scheduler's metrics say about a run.
//
// The scheduler's samples of the time of a single plugin (scheduler_plugin_execution_duration_seconds) are not among them: they are of
// one cycle in ten, and of these only 1,000 per second are kept, in the order in which they come, so that with more than some hundred
// nodes Filter takes all of them. CPUProfile has that time.
type Counts struct {
	// Scoring is the time of the extension points PreFilter, PreScore and Score with all their plugins and the framework's own work, of
	// all cycles, by the clock (scheduler_framework_extension_point_duration_seconds). PreFilter is one of them because Berth's plugin
	// computes its scores there.
	Scoring time.Duration
	// Reused is how many pods got a node from the scores of the pod before (scheduler_batch_attempts_total).
	Reused int
	// GangAttempts is how often a whole gang was tried (scheduler_podgroup_schedule_attempts_total). GangDecision is the time of these
	// decisions by the clock (scheduler_podgroup_scheduling_algorithm_duration_seconds), GangCycle with what is written before the next
	// decision begins (scheduler_podgroup_scheduling_attempt_duration_seconds). Only Kubernetes' own gang scheduling counts them.
	GangAttempts int
	GangDecision time.Duration
	GangCycle    time.Duration
	// PluginCalls is how often Berth's placement plugin was called at all extension points that are counted
	// (scheduler_plugin_evaluation_total). Score alone is not enough: it is not called for a pod that one node only is left for, such
	// as a planned member of a gang.
	PluginCalls int
}

// parse reads metrics in the text format.
func parse(text io.Reader) (Counts, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Counts{}, err
	}
	var c Counts
	for _, point := range []string{"PreFilter", "PreScore", "Score"} {
		c.Scoring += seconds(families["scheduler_framework_extension_point_duration_seconds"], map[string]string{"extension_point": point})
	}
	c.Reused = int(total(families["scheduler_batch_attempts_total"], map[string]string{"result": "hint_used"}))
	c.GangAttempts = int(total(families["scheduler_podgroup_schedule_attempts_total"], nil))
	c.GangDecision = seconds(families["scheduler_podgroup_scheduling_algorithm_duration_seconds"], nil)
	c.GangCycle = seconds(families["scheduler_podgroup_scheduling_attempt_duration_seconds"], nil)
	c.PluginCalls = int(total(families["scheduler_plugin_evaluation_total"], map[string]string{"plugin": Plugin}))
	return c, nil
}

// seconds is total of a family in seconds.
func seconds(family *dto.MetricFamily, labels map[string]string) time.Duration {
	return time.Duration(total(family, labels) * float64(time.Second))
}

// total adds up the series of a family that have the labels: the values of counters, the sums of histograms.
func total(family *dto.MetricFamily, labels map[string]string) float64 {
	sum := 0.0
	for _, m := range family.GetMetric() {
		if matches(m, labels) {
			sum += m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return sum
}

func matches(m *dto.Metric, labels map[string]string) bool {
	found := 0
	for _, l := range m.GetLabel() {
		if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
			found++
		}
	}
	return found == len(labels)
}
