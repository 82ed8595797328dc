package metrics

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// hostnameReleased is the name of the label with the node's name that every release of dcgm-exporter writes. Its main branch writes
// hostname.
const hostnameReleased = "Hostname"

// DCGM renders the fields of the input in dcgm-exporter's vocabulary. On a GPU that several pods share, a field that adds up, such as
// memory, has one series for each holder whose part is known, and one without pod labels for the rest. Everything else has one
// series for each GPU, with pod labels where one pod alone has it; the pods' parts are under berth_gpu_pod_*. As
// in dcgm-exporter a GPU instance of a partitioned GPU has series of its own.
func DCGM(in Input) []byte {
	t := &text{out: make([]byte, 0, 64<<10)}
	join(in).dcgm(t)
	return t.out
}

func (v *view) dcgm(t *text) {
	host := labels(cmp.Or(v.in.DCGMHostnameLabel, hostnameReleased), v.in.Node)
	var targets []target
	var instances [][]target
	for i := range v.gpus {
		c := &v.gpus[i]
		at := slices.IndexFunc(v.in.Vendors, func(t gpu.Traits) bool { return t.DCGM && t.Name == c.Vendor })
		if at < 0 {
			continue
		}
		version := labels("DCGM_FI_DRIVER_VERSION", v.in.Snapshot.Vendor(c.Vendor).Driver.Version)
		one := target{gpu: c, readings: &c.sample.Readings, use: &c.use, labels: []string{dcgmLabels(c, &v.in.Vendors[at]), "", host, version}}
		targets, instances = append(targets, one), append(instances, c.instances(one.labels))
	}
	for i := range v.in.DCGMFields {
		switch f := &v.in.DCGMFields[i]; f.Name {
		case dcgm.LastXID:
			lastXIDs(t, f, targets)
		case dcgm.XIDCount:
			v.xidCounts(t, f, targets)
		default:
			dcgmField(t, f, targets, instances)
		}
	}
}

// dcgmField writes a field that is computed from readings, for each GPU or its GPU instances.
func dcgmField(t *text, f *dcgm.Export, targets []target, instances [][]target) {
	t.name(f.Name, kind(f.Type), f.Help, dcgmLabelNames()...)
	for i := range targets {
		if !f.MIG || len(instances[i]) == 0 {
			fieldSeries(t, f, &targets[i])
			continue
		}
		for j := range instances[i] {
			fieldSeries(t, f, &instances[i][j])
		}
		if !f.Adds {
			continue
		}
		// In a sum, the GPU's own number would be counted twice beside those of its instances.
		if rest, ok := restOf(f, &targets[i], instances[i]); ok {
			t.series(f.Name, rest, targets[i].labels...)
		}
	}
}

// target is what series are written for: a GPU, or a GPU instance of a partitioned one.
type target struct {
	// gpu is nil for a GPU instance.
	gpu      *gpuView
	readings *gpu.Readings
	use      *use
	labels   []string
}

// fieldSeries writes the series of a target for a field.
func fieldSeries(t *text, f *dcgm.Export, on *target) {
	value, ok := f.Of(on.readings)
	switch {
	case !ok:
	case f.Adds && on.use.shared():
		shares(t, f, on)
	default:
		t.series(f.Name, value, append(on.labels, on.pod())...)
	}
}

// pod returns the labels of the only holder; none when there are several or none.
func (on *target) pod() string {
	if owner, held := on.use.holder(); held {
		return podLabels(owner)
	}
	return ""
}

// instances returns the GPU instances of a partitioned GPU. Compute instances of one GPU instance share its memory and its
// readings, and are one target.
func (c *gpuView) instances(own []string) []target {
	var targets []target
	at := map[int]int{}
	for i := range c.devices {
		d := &c.devices[i]
		if k, there := at[d.GI]; there {
			targets[k].use = merged(targets[k].use, &d.use)
			continue
		}
		at[d.GI] = len(targets)
		instance := labels("GPU_I_PROFILE", instanceProfile(d.Profile), "GPU_I_ID", strconv.Itoa(d.GI))
		targets = append(targets, target{readings: &d.sample.Readings, use: &d.use, labels: []string{own[0], instance, own[2], own[3]}})
	}
	return targets
}

// instanceProfile returns the profile of the GPU instance of a MIG device: 2g.20gb of 1c.2g.20gb.
func instanceProfile(profile string) string {
	if first, rest, found := strings.Cut(profile, "."); found && strings.HasSuffix(first, "c") {
		return rest
	}
	return profile
}

// merged returns the use of two compute instances of one GPU instance.
func merged(a, b *use) *use {
	m := &use{holdings: slices.Concat(a.holdings, b.holdings), byOwner: slices.Clone(a.byOwner)}
	for _, s := range b.byOwner {
		i := slices.IndexFunc(m.byOwner, func(o ownerUse) bool { return o.Owner == s.Owner && o.host == s.host })
		if i < 0 {
			m.byOwner = append(m.byOwner, s)
			continue
		}
		one := &m.byOwner[i]
		one.memory += s.memory
		one.memoryKnown = one.memoryKnown && s.memoryKnown
	}
	return m
}

func podLabels(o Owner) string {
	return labels("pod", o.Pod, "namespace", o.Namespace, "container", o.Container)
}

// dcgmLabelNames returns the names of all labels that a series can have under dcgm-exporter's names.
func dcgmLabelNames() []string {
	return []string{
		"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", hostnameReleased, "DCGM_FI_DRIVER_VERSION",
		"pod", "namespace", "container",
	}
}

func dcgmLabels(c *gpuView, vendor *gpu.Traits) string {
	device := ""
	if len(vendor.NodePrefixes) > 0 {
		device = path.Base(vendor.NodePrefixes[0]) + strconv.Itoa(c.Minor)
	}
	return labels("gpu", strconv.Itoa(c.Index), "UUID", string(c.UUID), "pci_bus_id", nvmlBusID(c.PCI),
		"device", device, "modelName", c.Product)
}

// nvmlBusID returns the address in NVML's form, with eight digits of the domain and capital letters.
func nvmlBusID(a gpu.PCIAddress) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, 16)
	for shift := 28; shift >= 0; shift -= 4 {
		out = append(out, digits[a.Domain>>shift&15])
	}
	for _, part := range []uint8{a.Bus, a.Device} {
		out = append(out, ':', digits[part>>4], digits[part&15])
	}
	return string(append(out, '.', digits[a.Function&15]))
}
