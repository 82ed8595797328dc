package metrics_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// parse parses a page as Prometheus does.
func parse(t testing.TB, page []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatalf("Prometheus cannot read the page: %v", err)
	}
	return families
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func value(m *dto.Metric) float64 { return m.GetGauge().GetValue() + m.GetCounter().GetValue() }

// series returns those of a name that belong to a GPU.
func series(families map[string]*dto.MetricFamily, name string, uuid gpu.UUID) []*dto.Metric {
	var found []*dto.Metric
	for _, m := range families[name].GetMetric() {
		if label(m, "UUID") == string(uuid) {
			found = append(found, m)
		}
	}
	return found
}

func sum(list []*dto.Metric) float64 {
	total := 0.0
	for _, m := range list {
		total += value(m)
	}
	return total
}

// TestDCGMAddsUp: under dcgm-exporter's names the series of a GPU add up to what the GPU says, and what cannot be
// added has one series for each GPU (or GPU instance, which dcgm-exporter treats as one), however many pods share it.
func TestDCGMAddsUp(t *testing.T) {
	const mib = 1.0 / (1 << 20)
	additive := map[string]struct {
		measure gpu.Measure
		scale   float64
	}{
		"DCGM_FI_DEV_FB_USED": {gpu.MemoryUsed, mib}, "DCGM_FI_DEV_FB_FREE": {gpu.MemoryFree, mib},
		"DCGM_FI_DEV_FB_RESERVED": {gpu.MemoryReserved, mib}, "DCGM_FI_DEV_FB_TOTAL": {gpu.MemorySize, mib},
	}
	single := map[string]struct {
		measure gpu.Measure
		scale   float64
	}{
		"DCGM_FI_DEV_GPU_UTIL": {gpu.UtilizationGPU, 100}, "DCGM_FI_DEV_MEM_COPY_UTIL": {gpu.UtilizationMemory, 100},
		"DCGM_FI_DEV_ENC_UTIL": {gpu.UtilizationEncoder, 100}, "DCGM_FI_DEV_DEC_UTIL": {gpu.UtilizationDecoder, 100},
		"DCGM_FI_DEV_GPU_TEMP": {gpu.TemperatureGPU, 1}, "DCGM_FI_DEV_POWER_USAGE": {gpu.PowerUsage, 1},
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": {gpu.EnergyTotal, 1000}, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": {gpu.PCIeReplays, 1},
	}
	for name, make := range worlds() {
		t.Run(name, func(t *testing.T) {
			in := make(t)
			in.DCGMFields = append(in.DCGMFields, listed(t, "DCGM_FI_DEV_FB_TOTAL, gauge, x")...)
			families := parse(t, metrics.DCGM(in))
			checked := 0
			for i := range in.Snapshot.GPUs {
				g := &in.Snapshot.GPUs[i]
				sample := in.Sample.GPU(g.UUID)
				if sample == nil || !slices.ContainsFunc(in.Vendors, func(v gpu.Traits) bool { return v.DCGM && v.Name == g.Vendor }) {
					continue
				}
				for name, of := range additive {
					want, known := sample.Get(of.measure)
					got := series(families, name, g.UUID)
					if !known {
						continue
					}
					checked++
					if sum(got) != math.Round(want*of.scale) {
						t.Errorf("%s of GPU %d adds up to %v in %d series, the GPU says %v", name, g.Index, sum(got), len(got), math.Round(want*of.scale))
					}
				}
				for name, of := range single {
					want, known := sample.Get(of.measure)
					if !known {
						continue
					}
					checked++
					got := series(families, name, g.UUID)
					if len(got) != 1 || math.Abs(sum(got)-want*of.scale) > 0.5 {
						t.Errorf("%s of GPU %d has %d series with the sum %v, want one of %v", name, g.Index, len(got), sum(got), want*of.scale)
					}
				}
				for _, used := range series(families, "DCGM_FI_DEV_FB_USED", g.UUID) {
					for _, below := range denominators() {
						ratio(t, g, families, used, below)
					}
				}
			}
			if checked < 8*len(in.Snapshot.GPUs)/2 {
				t.Errorf("only %d values were compared", checked)
			}
		})
	}
}

// denominators returns what dashboards and alerts divide the used memory by: the sum of these fields.
func denominators() [][]string {
	const used, free, reserved, total = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"
	return [][]string{{used, free}, {used, free, reserved}, {total}}
}

// quotient divides a series of the used memory by the series of the other fields that have the same labels, as Prometheus does; false
// when one of them has none.
func quotient(families map[string]*dto.MetricFamily, used *dto.Metric, below []string) (float64, bool) {
	divisor := 0.0
	for _, name := range below {
		list := families[name].GetMetric()
		i := slices.IndexFunc(list, func(m *dto.Metric) bool { return fmt.Sprint(m.GetLabel()) == fmt.Sprint(used.GetLabel()) })
		if i < 0 {
			return 0, false
		}
		divisor += value(list[i])
	}
	return value(used) / divisor, true
}

// ratio checks that each series of the used memory gives the ratio of the GPU or of the GPU instance. A part of a GPU that
// uses nothing gives none.
func ratio(t *testing.T, g *gpu.GPU, families map[string]*dto.MetricFamily, used *dto.Metric, below []string) {
	t.Helper()
	instance := label(used, "GPU_I_ID")
	all := func(names ...string) float64 {
		total := 0.0
		for _, name := range names {
			for _, m := range series(families, name, g.UUID) {
				if label(m, "GPU_I_ID") == instance {
					total += value(m)
				}
			}
		}
		return total
	}
	got, found := quotient(families, used, below)
	want := all("DCGM_FI_DEV_FB_USED") / all(below...)
	switch {
	case !found && value(used) > 0:
		t.Errorf("FB_USED of GPU %d%s for pod %q has no %v with the same labels", g.Index, instance, label(used, "pod"), below)
	case found && !(math.Abs(got-want) <= 0.01): // NaN is not
		t.Errorf("used/%v of GPU %d%s for pod %q is %.3f, the GPU's is %.3f", below, g.Index, instance, label(used, "pod"), got, want)
	}
}

// TestDCGMLabels checks that the labels are those of dcgm-exporter's releases.
func TestDCGMLabels(t *testing.T) {
	in := worlds()["a100-mixed-use"](t)
	for hostLabel, want := range map[string]string{"": "Hostname", "Hostname": "Hostname", "hostname": "hostname"} {
		in.DCGMHostnameLabel = hostLabel
		for name, family := range parse(t, metrics.DCGM(in)) {
			for _, m := range family.GetMetric() {
				if label(m, want) != "node-a" {
					t.Fatalf("%s has no label %s: %v", name, want, m.GetLabel())
				}
			}
		}
	}
	xids := parse(t, metrics.DCGM(in))["DCGM_FI_DEV_XID_ERRORS"]
	messages := map[string]string{}
	for _, m := range xids.GetMetric() {
		messages[label(m, "err_code")] = label(m, "err_msg")
	}
	for code, want := range map[string]string{"0": "No Error", "13": "Graphics Engine Exception", "79": "GPU has fallen off the bus"} {
		if messages[code] != want {
			t.Errorf("err_msg of %s is %q, want %q (all: %v)", code, messages[code], want, messages)
		}
	}
}

// TestDCGMComputeInstances checks that compute instances of one GPU instance share its memory, and are one series.
func TestDCGMComputeInstances(t *testing.T) {
	vendors := []gpu.Traits{{Name: "v", DCGM: true}}
	in := metrics.Input{Node: "node-a", Vendors: vendors, DCGMFields: dcgm.Defaults(), Snapshot: &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a", Vendor: "v", MIG: gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{
		{Partition: gpu.Partition{UUID: "MIG-1", Profile: "1c.2g.20gb"}, GI: 3, CI: 0}, {Partition: gpu.Partition{UUID: "MIG-2", Profile: "1c.2g.20gb"}, GI: 3, CI: 1},
	}}}}}}
	sample := gpu.GPUSample{GPU: "GPU-a"}
	sample.Set(gpu.MemoryUsed, 5<<30)
	sample.Set(gpu.MemoryFree, 35<<30)
	for _, id := range []gpu.UUID{"MIG-1", "MIG-2"} {
		d := gpu.DeviceSample{UUID: id}
		d.Set(gpu.MemoryUsed, 4<<30)
		d.Set(gpu.MemoryFree, 16<<30)
		sample.Devices = append(sample.Devices, d)
		in.Holdings = append(in.Holdings, holding(gpu.DeviceKey{GPU: "GPU-a", MIG: id}, owner("pod-of-"+string(id)), "", ""))
	}
	in.Sample.GPUs = []gpu.GPUSample{sample}
	page := metrics.DCGM(in)
	unique(t, page)
	used := series(parse(t, page), "DCGM_FI_DEV_FB_USED", "GPU-a")
	if len(used) != 2 || label(used[0], "GPU_I_PROFILE") != "2g.20gb" || label(used[0], "GPU_I_ID") != "3" || value(used[0]) != 4096 || sum(used) != 5120 {
		t.Errorf("FB_USED is %v, want 4096 of GPU instance 3 (2g.20gb) and 1024 of the rest", used)
	}
}
