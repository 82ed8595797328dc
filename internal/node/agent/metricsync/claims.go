package metricsync

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
)

// claimMetrics are the metrics of the DRA driver. A node that allocates nothing through DRA has none of them.
type claimMetrics struct {
	duration *prometheus.Desc
	errors   *prometheus.Desc
	claims   *prometheus.Desc
	slices   *prometheus.Desc
	twoAPIs  *prometheus.Desc
	age      *prometheus.Desc
}

func newClaimMetrics(describe func(name, help string, labels ...string) *prometheus.Desc) claimMetrics {
	return claimMetrics{
		duration: describe("dra_call_duration_seconds", "How long the kubelet's calls for a claim took.", "operation"),
		errors:   describe("dra_errors_total", "Calls for a claim that failed, by reason.", "operation", "reason"),
		claims:   describe("dra_claims", "ResourceClaims that hold devices."),
		slices:   describe("dra_resource_slices", "ResourceSlices that the node publishes."),
		twoAPIs:  describe("dra_devices_in_two_apis", "Published devices that the kubelet counts for a device plugin too, by GPU or resource name."),
		age:      describe("dra_publish_age_seconds", "Time since the API server was last seen to have the ResourceSlices."),
	}
}

func (m *claimMetrics) describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.duration, m.errors, m.claims, m.slices, m.twoAPIs, m.age} {
		out <- desc
	}
}

func (m *claimMetrics) collect(out chan<- prometheus.Metric, stats dra.Stats, holdings []gpu.Holding) {
	claims := map[string]bool{}
	for _, holding := range holdings {
		if holding.Holder.Kind == gpu.HolderClaim {
			claims[holding.Holder.ID] = true
		}
	}
	if !stats.Active && len(claims) == 0 {
		return
	}
	for _, one := range stats.Calls {
		out <- prometheus.MustNewConstHistogram(m.duration, one.Count, one.Seconds, one.Buckets, one.Operation)
		for _, failed := range one.Errors {
			out <- prometheus.MustNewConstMetric(m.errors, prometheus.CounterValue, float64(failed.Count), one.Operation, failed.Reason)
		}
	}
	out <- prometheus.MustNewConstMetric(m.claims, prometheus.GaugeValue, float64(len(claims)))
	out <- prometheus.MustNewConstMetric(m.slices, prometheus.GaugeValue, float64(stats.Slices))
	out <- prometheus.MustNewConstMetric(m.twoAPIs, prometheus.GaugeValue, float64(stats.TwoAPIs))
	if stats.Age >= 0 {
		out <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, stats.Age.Seconds())
	}
}
