package placement

import (
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	basemetrics "k8s.io/component-base/metrics"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// metrics are served with those of the scheduler.
type metrics struct {
	predictions *basemetrics.CounterVec
	misses      *basemetrics.Counter
}

// newMetrics registers the metrics.
func newMetrics(register func(basemetrics.Registerable) error) (*metrics, error) {
	m := &metrics{
		predictions: basemetrics.NewCounterVec(&basemetrics.CounterOpts{
			Name: "berth_scheduler_predictions_total", StabilityLevel: basemetrics.ALPHA,
			Help: "Predictions of the GPUs of a pod that were compared with what the kubelet has allocated, by result: hit, miss, or excluded where the kubelet's topology manager chooses.",
		}, []string{"result"}),
		misses: basemetrics.NewCounter(&basemetrics.CounterOpts{
			Name: "berth_scheduler_prediction_misses_total", StabilityLevel: basemetrics.ALPHA,
			Help: "Pods to which the kubelet has allocated other GPUs than the scheduler predicted.",
		}),
	}
	for _, metric := range []basemetrics.Registerable{m.predictions, m.misses} {
		if err := register(metric); err != nil {
			return nil, fmt.Errorf("register a metric: %w", err)
		}
	}
	for _, result := range []string{"hit", "miss", "excluded"} {
		m.predictions.WithLabelValues(result)
	}
	return m, nil
}

// checker returns what counts and logs the result of a prediction.
func (m *metrics) checker(log *slog.Logger) func(model.Check) {
	return func(c model.Check) {
		switch {
		case c.Excluded != "":
			m.predictions.WithLabelValues("excluded").Inc()
		case c.Hit():
			m.predictions.WithLabelValues("hit").Inc()
		default:
			m.predictions.WithLabelValues("miss").Inc()
			m.misses.Inc()
			log.Info("the kubelet has allocated other GPUs than predicted", "pod", c.Pod, "node", c.Node, "predicted", c.Predicted, "allocated", c.Allocated, "seen", c.Seen)
		}
	}
}

func logrHandler(logger logr.Logger) slog.Handler { return logr.ToSlogHandler(logger) }
