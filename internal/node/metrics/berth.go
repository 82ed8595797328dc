package metrics

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	prefix    = "berth_gpu_"
	migPrefix = "berth_gpu_mig_"
)

// Berth renders the input in Berth's vocabulary.
func Berth(in Input) []byte {
	v := join(in)
	t := &text{out: make([]byte, 0, 64<<10)}
	v.berth(t)
	return t.out
}

// Metric describes one metric of a page.
type Metric struct {
	Name string
	Kind string
	Help string
	// Labels are the names of all labels that a series can have.
	Labels []string
}

// Catalogue lists each metric that Berth's page can have.
func Catalogue() []Metric {
	t := &text{catalogue: []Metric{}}
	join(Input{}).berth(t)
	ageOf(t, 0, 0)
	return t.catalogue
}

// DCGMCatalogue lists the metrics that the page can have under dcgm-exporter's names with these fields.
func DCGMCatalogue(fields []dcgm.Export) []Metric {
	t := &text{catalogue: []Metric{}}
	join(Input{DCGMFields: fields}).dcgm(t)
	return t.catalogue
}

func (v *view) berth(t *text) {
	names := make([]gpuLabels, len(v.gpus))
	for i := range v.gpus {
		names[i] = labelsOf(&v.gpus[i])
	}
	v.identity(t, names)
	v.meters(t, names)
	v.clockReasons(t, names)
	v.health(t, names)
	v.pods(t)
	v.sources(t, names)
}

// gpuLabels are made once for each GPU.
type gpuLabels struct {
	gpu     string
	devices []string
}

func labelsOf(c *gpuView) gpuLabels {
	l := gpuLabels{gpu: labels("uuid", string(c.UUID), "index", strconv.Itoa(c.Index))}
	for i := range c.devices {
		d := &c.devices[i]
		l.devices = append(l.devices, labels("uuid", string(d.UUID),
			"index", strconv.Itoa(c.Index)+":"+strconv.Itoa(d.Index), "profile", d.Profile))
	}
	return l
}

func (v *view) identity(t *text, names []gpuLabels) {
	t.name(prefix+"info", gauge, "1 for each GPU of the node, with what does not change.", "uuid", "index", "pci_bus_id", "model", "architecture", "node")
	for i := range v.gpus {
		c := &v.gpus[i]
		t.series(prefix+"info", 1, names[i].gpu, labels("pci_bus_id", c.PCI.String(), "model", c.Product,
			"architecture", c.Architecture, "node", v.in.Node))
	}
	t.name(migPrefix+"info", gauge, "1 for each MIG device of the node, with the GPU that it is a part of.", "uuid", "index", "profile", "gpu_uuid", "gi", "ci", "node")
	for i := range v.gpus {
		for j := range v.gpus[i].devices {
			d := &v.gpus[i].devices[j]
			t.series(migPrefix+"info", 1, names[i].devices[j], labels("gpu_uuid", string(v.gpus[i].UUID),
				"gi", strconv.Itoa(d.GI), "ci", strconv.Itoa(d.CI), "node", v.in.Node))
		}
	}
	v.drivers(t)
	t.name(prefix+"allocation_info", gauge, "1 for each device that a container holds: uuid is the device's, gpu_uuid the GPU's.", "uuid", "gpu_uuid", "share", "mode", "resource", "namespace", "pod", "container", "pod_uid")
	each := func(held []Holding) {
		for _, h := range held {
			t.series(prefix+"allocation_info", 1, labels("uuid", string(h.Key.Device()), "gpu_uuid", string(h.Key.GPU),
				"share", strconv.Itoa(h.Key.Share), "mode", h.Mode, "resource", h.Holder.Resource), ownerLabels(h.Owner))
		}
	}
	for i := range v.gpus {
		each(v.gpus[i].use.holdings)
		for j := range v.gpus[i].devices {
			each(v.gpus[i].devices[j].use.holdings)
		}
	}
	v.claims(t)
}

// claims writes which ResourceClaims hold devices, each for all its requests.
func (v *view) claims(t *text) {
	t.name(prefix+"claim_info", gauge, "1 for each device that a ResourceClaim holds, and each request that it is for: uuid is the device's, gpu_uuid the GPU's.",
		"uuid", "gpu_uuid", "namespace", "claim", "claim_uid", "request")
	claims := slices.SortedFunc(slices.Values(v.in.Claims), func(a, b gpu.Holding) int {
		return cmp.Or(gpu.CompareKeys(a.Key, b.Key), cmp.Compare(a.Holder.ID, b.Holder.ID))
	})
	for i := range claims {
		h := &claims[i]
		requests := h.Requests
		if len(requests) == 0 {
			requests = []string{""}
		}
		for _, request := range requests {
			t.series(prefix+"claim_info", 1, labels("uuid", string(h.Key.Device()), "gpu_uuid", string(h.Key.GPU), "namespace", h.Holder.Namespace,
				"claim", h.Holder.Name, "claim_uid", h.Holder.ID, "request", request))
		}
	}
}

// drivers writes the driver of each vendor. The name of the vendor is a label where there are several.
func (v *view) drivers(t *text) {
	const name = "berth_driver_info"
	help := "1, with the version of the driver of each vendor."
	if len(v.in.Vendors) == 1 {
		help = "1, with the version of the " + v.in.Vendors[0].Title + " driver."
	}
	t.name(name, gauge, help, "version", "cuda", "node", "vendor")
	if v.in.Snapshot == nil {
		return
	}
	for _, vendor := range v.in.Snapshot.Vendors {
		driver, cuda, of := vendor.Driver, "", ""
		if driver.CUDA != (gpu.Version{}) {
			cuda = driver.CUDA.String()
		}
		if v.in.Snapshot.SeveralVendors() {
			of = labels("vendor", vendor.Name)
		}
		if driver.Present() {
			t.series(name, 1, labels("version", driver.Version, "cuda", cuda, "node", v.in.Node), of)
		}
	}
}

func ownerLabels(o Owner) string {
	return labels("namespace", o.Namespace, "pod", o.Pod, "container", o.Container, "pod_uid", o.PodUID)
}

func (v *view) meters(t *text, names []gpuLabels) {
	for _, m := range meters() {
		t.name(prefix+m.name, m.kind, m.help, append([]string{"uuid", "index"}, m.labels()...)...)
		for i := range v.gpus {
			for _, p := range m.parts {
				if value, ok := v.gpus[i].sample.Get(p.measure); ok {
					t.series(prefix+m.name, value, names[i].gpu, p.label)
				}
			}
		}
		if !m.mig {
			continue
		}
		t.name(migPrefix+m.name, m.kind, m.help, "uuid", "index", "profile")
		for i := range v.gpus {
			for j := range v.gpus[i].devices {
				if value, ok := v.gpus[i].devices[j].sample.Get(m.parts[0].measure); ok {
					t.series(migPrefix+m.name, value, names[i].devices[j])
				}
			}
		}
	}
}

func (v *view) clockReasons(t *text, names []gpuLabels) {
	const name = prefix + "clocks_held_down"
	t.name(name, gauge, "1 for each reason that lowers the clocks, 0 for the others.", "uuid", "index", "reason")
	for i := range v.gpus {
		bits, ok := v.gpus[i].sample.Get(gpu.ClockReasons)
		if !ok {
			continue
		}
		for _, reason := range reasons() {
			t.series(name, oneIf(uint64(bits)&reason.bit != 0), names[i].gpu, labels("reason", reason.name))
		}
	}
}

func (v *view) health(t *text, names []gpuLabels) {
	t.name(prefix+"healthy", gauge, "1 while the GPU can be allocated.", "uuid", "index")
	for i := range v.gpus {
		t.series(prefix+"healthy", oneIf(v.gpus[i].Health.OK()), names[i].gpu)
	}
	t.name(migPrefix+"healthy", gauge, "1 while the MIG device can be allocated.", "uuid", "index", "profile")
	for i := range v.gpus {
		for j := range v.gpus[i].devices {
			t.series(migPrefix+"healthy", oneIf(v.gpus[i].devices[j].Health.OK()), names[i].devices[j])
		}
	}
	t.name(prefix+"health_state", gauge, "1 for the state that the GPU is in, 0 for the others.", "uuid", "index", "state")
	for i := range v.gpus {
		now := cmp.Or(v.gpus[i].Health.State, gpu.Healthy)
		for _, state := range states() {
			t.series(prefix+"health_state", oneIf(state == now), names[i].gpu, labels("state", string(state)))
		}
	}
	t.name(prefix+"health_cause", gauge, "1 for each active cause of the health state.", "uuid", "index", "code")
	for i := range v.gpus {
		var codes []string
		for _, cause := range v.gpus[i].Health.Causes {
			codes = append(codes, cause.Code)
		}
		slices.Sort(codes)
		for _, code := range slices.Compact(codes) {
			t.series(prefix+"health_cause", 1, names[i].gpu, labels("code", code))
		}
	}
	t.name(prefix+"xid_errors_total", counter, "XIDs that the driver reported since the agent started.", "uuid", "index", "xid")
	for i := range v.gpus {
		for _, x := range v.gpus[i].xids {
			t.series(prefix+"xid_errors_total", float64(x.Count), names[i].gpu, labels("xid", strconv.FormatUint(x.XID, 10)))
		}
	}
}

// pods writes what the processes of each pod use. Processes of the node itself have names of their own, so that the series of
// pods can be summed.
func (v *view) pods(t *text) {
	numbers := []struct {
		name  string
		help  string
		value func(ownerUse) (float64, bool)
	}{
		{"processes", "Processes that compute on the device.", func(s ownerUse) (float64, bool) { return float64(s.processes), true }},
		{"memory_used_bytes", "Memory that the processes use.", func(s ownerUse) (float64, bool) { return float64(s.memory), s.memoryKnown }},
		{"sm_utilization_ratio", "Use of the multiprocessors by the processes.", func(s ownerUse) (float64, bool) { return s.sm, s.activityKnown }},
		{"memory_utilization_ratio", "Use of the memory's bandwidth by the processes.", func(s ownerUse) (float64, bool) { return s.bandwidth, s.activityKnown }},
	}
	for _, host := range []bool{false, true} {
		before, names := prefix+"pod_", []string{"uuid", "namespace", "pod", "container", "pod_uid"}
		if host {
			before, names = prefix+"host_", []string{"uuid"}
		}
		for _, number := range numbers {
			t.name(before+number.name, gauge, number.help, names...)
			each := func(device gpu.UUID, owners []ownerUse) {
				for _, s := range owners {
					value, known := number.value(s)
					if s.host != host || !known {
						continue
					}
					owner := ""
					if !host {
						owner = ownerLabels(s.Owner)
					}
					t.series(before+number.name, value, labels("uuid", string(device)), owner)
				}
			}
			for i := range v.gpus {
				c := &v.gpus[i]
				each(c.UUID, c.use.byOwner)
				for j := range c.devices {
					each(c.devices[j].UUID, c.devices[j].use.byOwner)
				}
			}
		}
	}
}

func (v *view) sources(t *text, names []gpuLabels) {
	t.name(prefix+"source_success", gauge, "1 if the last reading of the source succeeded in time.", "uuid", "index", "source")
	for i := range v.gpus {
		for _, s := range v.gpus[i].sample.Sources {
			t.series(prefix+"source_success", oneIf(s.OK), names[i].gpu, labels("source", s.Name))
		}
	}
	t.name(prefix+"source_duration_seconds", gauge, "How long the last reading of the source took.", "uuid", "index", "source")
	for i := range v.gpus {
		for _, s := range v.gpus[i].sample.Sources {
			t.series(prefix+"source_duration_seconds", s.Took.Seconds(), names[i].gpu, labels("source", s.Name))
		}
	}
	t.name(prefix+"sample_duration_seconds", gauge, "How long the last pass over all GPUs took.")
	t.series(prefix+"sample_duration_seconds", v.in.Sample.Took.Seconds())
	t.name(prefix+"sample_timestamp_seconds", gauge, "When the last pass ended.")
	if !v.in.Sample.Time.IsZero() {
		t.series(prefix+"sample_timestamp_seconds", float64(v.in.Sample.Time.UnixMilli())/1000)
	}
}
