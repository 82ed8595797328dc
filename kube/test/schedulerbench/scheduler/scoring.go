package scheduler

import (
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Scoring is what a scheduler's metrics say about scoring.
//
// The scheduler times a plugin in one of ten scheduling cycles, drawn at random, and keeps 1,000 samples of all plugins per second; Score is one
// sample per node, so that most of these are lost. Sums of samples thus mean nothing, but their means do, and how often a plugin was called
// is counted without exception (scheduler_plugin_evaluation_total). PluginTime is made of calls x mean. A call takes at least the 0.1 µs of its
// own measurement.
type Scoring struct {
	// PreScore and Score are the calls of Berth's plugin, Score once per node; Normalize is called as often as PreScore. All are zero with a
	// scheduler that has no such plugin.
	PreScore, Score, Normalize Calls
	// AllPlugins is the time of the extension points PreScore and Score with all their plugins and the framework's own work, of all cycles
	// (scheduler_framework_extension_point_duration_seconds).
	AllPlugins time.Duration
	// Reused is how many pods got a node from the scores of the pod before (scheduler_batch_attempts_total).
	Reused int
}

// Calls are the calls of a plugin at an extension point.
type Calls struct {
	// Count is how many there were; Samples of them were timed.
	Count, Samples int
	// Mean is the mean duration of the samples.
	Mean time.Duration
}

// PluginTime is the time that Berth's plugin has spent on scoring, added up over threads.
func (s Scoring) PluginTime() time.Duration {
	sum := time.Duration(0)
	for _, c := range []Calls{s.PreScore, s.Score, s.Normalize} {
		sum += time.Duration(c.Count) * c.Mean
	}
	return sum
}

// parse reads metrics in the text format.
func parse(text io.Reader) (Scoring, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Scoring{}, err
	}
	calls := func(point string) Calls {
		counted := total(families["scheduler_plugin_evaluation_total"], map[string]string{"plugin": Plugin, "extension_point": point})
		timed := total(families["scheduler_plugin_execution_duration_seconds"], map[string]string{"plugin": Plugin, "extension_point": point})
		c := Calls{Count: int(counted.sum), Samples: timed.count}
		if timed.count > 0 {
			c.Mean = seconds(timed.sum / float64(timed.count))
		}
		return c
	}
	points := families["scheduler_framework_extension_point_duration_seconds"]
	preScore, score := total(points, map[string]string{"extension_point": "PreScore"}), total(points, map[string]string{"extension_point": "Score"})
	s := Scoring{
		PreScore: calls("PreScore"), Score: calls("Score"), Normalize: calls("ScoreExtensionNormalize"), AllPlugins: seconds(preScore.sum + score.sum),
		Reused: int(total(families["scheduler_batch_attempts_total"], map[string]string{"result": "hint_used"}).sum),
	}
	// A plugin without PreScore is normalized once per cycle that scores.
	s.Normalize.Count = s.PreScore.Count
	if s.Normalize.Samples > 0 && s.PreScore.Samples == 0 {
		s.Normalize.Count = score.count
	}
	return s, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// totals are those of several series.
type totals struct {
	sum   float64
	count int
}

// total adds up the series of a family that have the labels. A counter's value is a sum.
func total(family *dto.MetricFamily, labels map[string]string) totals {
	var t totals
	for _, m := range family.GetMetric() {
		if matches(m, labels) {
			t.sum += m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
			t.count += int(m.GetHistogram().GetSampleCount())
		}
	}
	return t
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
