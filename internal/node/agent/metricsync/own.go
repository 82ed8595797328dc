package metricsync

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/version"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/dra"
)

// OwnDeps are the sources of the agent's own metrics; all only read memory.
type OwnDeps struct {
	Plugin   func() []deviceplugin.Stats
	Holdings func() []gpu.Holding
	Problems func() []gpu.Cause
	DRA      func() dra.Stats
	// Refused is by resource how many pods that requested it the kubelet has refused.
	Refused func() map[string]uint64
}

// collector computes the agent's own metrics at each scrape. The metrics of the GPUs themselves are not here.
type collector struct {
	deps OwnDeps

	plugin   pluginMetrics
	refused  *prometheus.Desc
	holdings *prometheus.Desc
	build    *prometheus.Desc
	problems *prometheus.Desc
	claims   claimMetrics
}

// pluginMetrics are the metrics of the device plugin.
type pluginMetrics struct {
	devices       *prometheus.Desc
	healthy       *prometheus.Desc
	registered    *prometheus.Desc
	streams       *prometheus.Desc
	allocations   *prometheus.Desc
	refusals      *prometheus.Desc
	registrations *prometheus.Desc
}

// NewRegistry returns the registry of the agent's own metrics.
func NewRegistry(deps OwnDeps) *prometheus.Registry {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("berth_"+name, help, labels, nil)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&collector{
		deps: deps,
		plugin: pluginMetrics{
			devices:       describe("device_plugin_devices", "Devices advertised to the kubelet.", "resource"),
			healthy:       describe("device_plugin_healthy_devices", "Devices advertised to the kubelet as healthy.", "resource"),
			registered:    describe("device_plugin_registered", "1 while the kubelet keeps a stream open to this agent.", "resource"),
			streams:       describe("device_plugin_streams", "Open ListAndWatch streams.", "resource"),
			allocations:   describe("device_plugin_allocations_total", "Allocate calls that were answered.", "resource"),
			refusals:      describe("device_plugin_refusals_total", "Calls that ended in an error.", "resource"),
			registrations: describe("device_plugin_registrations_total", "Registrations that the kubelet took.", "resource"),
		},
		refused:  describe("pods_refused_total", "Pods that the kubelet refused for lack of devices after the scheduler had bound them, by a resource that they request.", "resource"),
		holdings: describe("holdings", "Devices held, by kind of holder.", "kind"),
		build:    describe("build_info", "1; the labels say which build of the agent this is.", "version", "commit", "go_version"),
		problems: describe("problem", "1 for each problem of the node that stands.", "code"),
		claims:   newClaimMetrics(describe),
	})
	return registry
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.plugin.devices, c.plugin.healthy, c.plugin.registered, c.plugin.streams,
		c.plugin.allocations, c.plugin.refusals, c.plugin.registrations, c.refused, c.holdings, c.build, c.problems,
	} {
		out <- desc
	}
	c.claims.describe(out)
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	for _, s := range c.deps.Plugin() {
		gauge(c.plugin.devices, float64(s.Devices), s.Resource)
		gauge(c.plugin.healthy, float64(s.Healthy), s.Resource)
		gauge(c.plugin.registered, truth(s.Registered), s.Resource)
		gauge(c.plugin.streams, float64(s.Streams), s.Resource)
		counter(c.plugin.allocations, s.Allocations, s.Resource)
		counter(c.plugin.refusals, s.Refusals, s.Resource)
		counter(c.plugin.registrations, s.Registrations, s.Resource)
	}
	for resource, n := range c.deps.Refused() {
		counter(c.refused, n, resource)
	}
	kinds := map[string]int{}
	for _, holding := range c.deps.Holdings() {
		kinds[string(holding.Holder.Kind)]++
	}
	for kind, n := range kinds {
		gauge(c.holdings, float64(n), kind)
	}
	c.claims.collect(out, c.deps.DRA(), c.deps.Holdings())
	build := version.Current()
	gauge(c.build, 1, build.Version, build.Commit, build.Go)
	codes := map[string]bool{}
	for _, problem := range c.deps.Problems() {
		if !codes[problem.Code] {
			codes[problem.Code] = true
			gauge(c.problems, 1, problem.Code)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
