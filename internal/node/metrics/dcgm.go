package metrics

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The names of the label with the node's name: every release of dcgm-exporter writes the first, its main branch the second.
const (
	HostnameReleased = "Hostname"
	HostnameNext     = "hostname"
)

// field is one of dcgm-exporter's default counters.
type field struct {
	name string
	kind kind
	help string
	// of computes the number from the readings.
	of func(*gpu.Readings) (float64, bool)
	// mig is true when a GPU instance has its own.
	mig bool
	// adds is true when the series of one GPU add up to the GPU's value.
	adds bool
	// part returns a holder's part of a shared device, where it is known; nil for a field without parts.
	part func(r *gpu.Readings, s ownerUse) (float64, bool)
}

// scaled is a measure in another unit.
func scaled(m gpu.Measure, scale float64) func(*gpu.Readings) (float64, bool) {
	return func(r *gpu.Readings) (float64, bool) {
		value, ok := r.Get(m)
		return value * scale, ok
	}
}

// whole is scaled to a whole number, as NVML reported it.
func whole(m gpu.Measure, scale float64) func(*gpu.Readings) (float64, bool) {
	return func(r *gpu.Readings) (float64, bool) {
		value, ok := r.Get(m)
		return math.Round(value * scale), ok
	}
}

const mebibyte = 1.0 / (1 << 20)

// fields are dcgm-exporter's default counters (its default-counters.csv and dcp-metrics-included.csv) that NVML and GPM
// can provide, with its names and units. DCGM_FI_DEV_XID_ERRORS has labels of its own and is not here.
func fields() []field {
	return []field{
		{name: "DCGM_FI_DEV_SM_CLOCK", kind: gauge, help: "SM clock (MHz).", of: whole(gpu.ClockSM, 1e-6)},
		{name: "DCGM_FI_DEV_MEM_CLOCK", kind: gauge, help: "Memory clock (MHz).", of: whole(gpu.ClockMemory, 1e-6)},
		{name: "DCGM_FI_DEV_MEMORY_TEMP", kind: gauge, help: "Memory temperature (C).", of: scaled(gpu.TemperatureMemory, 1)},
		{name: "DCGM_FI_DEV_GPU_TEMP", kind: gauge, help: "GPU temperature (C).", of: scaled(gpu.TemperatureGPU, 1)},
		{name: "DCGM_FI_DEV_POWER_USAGE", kind: gauge, help: "Power draw (W).", of: scaled(gpu.PowerUsage, 1)},
		{name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", kind: counter, help: "Energy since the driver was loaded (mJ).", of: whole(gpu.EnergyTotal, 1000)},
		{name: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", kind: counter, help: "PCIe retries.", of: scaled(gpu.PCIeReplays, 1)},
		{name: "DCGM_FI_DEV_GPU_UTIL", kind: gauge, help: "GPU utilization (%).", of: whole(gpu.UtilizationGPU, 100)},
		{name: "DCGM_FI_DEV_MEM_COPY_UTIL", kind: gauge, help: "Memory utilization (%).", of: whole(gpu.UtilizationMemory, 100)},
		{name: "DCGM_FI_DEV_ENC_UTIL", kind: gauge, help: "Encoder utilization (%).", of: whole(gpu.UtilizationEncoder, 100)},
		{name: "DCGM_FI_DEV_DEC_UTIL", kind: gauge, help: "Decoder utilization (%).", of: whole(gpu.UtilizationDecoder, 100)},
		{name: "DCGM_FI_DEV_FB_FREE", kind: gauge, help: "Free memory (MiB).", of: whole(gpu.MemoryFree, mebibyte), mig: true, adds: true, part: freePart},
		{name: "DCGM_FI_DEV_FB_USED", kind: gauge, help: "Used memory (MiB).", of: whole(gpu.MemoryUsed, mebibyte), mig: true, adds: true, part: usedPart},
		{name: "DCGM_FI_DEV_FB_RESERVED", kind: gauge, help: "Memory kept by the driver (MiB).", of: whole(gpu.MemoryReserved, mebibyte)},
		{name: "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", kind: counter, help: "Rows remapped for uncorrectable errors.", of: scaled(gpu.RemappedUncorrectable, 1)},
		{name: "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", kind: counter, help: "Rows remapped for correctable errors.", of: scaled(gpu.RemappedCorrectable, 1)},
		{name: "DCGM_FI_DEV_ROW_REMAP_FAILURE", kind: gauge, help: "Whether remapping of rows has failed.", of: scaled(gpu.RemapFailure, 1)},
		{name: "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", kind: counter, help: "Data sent and received over all NVLinks (KiB).", of: nvlinkTotal},
		{name: "DCGM_FI_DEV_VGPU_LICENSE_STATUS", kind: gauge, help: "vGPU licence status.", of: scaled(gpu.VGPULicensed, 1)},
		{name: "DCGM_FI_PROF_GR_ENGINE_ACTIVE", kind: gauge, help: "Ratio of time the graphics engine is active.", of: scaled(gpu.GraphicsActive, 1), mig: true},
		{name: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", kind: gauge, help: "Ratio of cycles the tensor pipe is active.", of: scaled(gpu.TensorActive, 1), mig: true},
		{name: "DCGM_FI_PROF_DRAM_ACTIVE", kind: gauge, help: "Ratio of cycles the memory interface is active.", of: scaled(gpu.DRAMActive, 1), mig: true},
		{name: "DCGM_FI_PROF_PCIE_TX_BYTES", kind: gauge, help: "Data sent over PCIe (bytes/s).", of: whole(gpu.PCIeTransmit, 1)},
		{name: "DCGM_FI_PROF_PCIE_RX_BYTES", kind: gauge, help: "Data received over PCIe (bytes/s).", of: whole(gpu.PCIeReceive, 1)},
	}
}

// nvlinkTotal is in NVML's unit: DCGM passes on the sum of its counters.
func nvlinkTotal(r *gpu.Readings) (float64, bool) {
	sent, ok1 := r.Get(gpu.NVLinkTransmitTotal)
	received, ok2 := r.Get(gpu.NVLinkReceiveTotal)
	return math.Round((sent + received) / 1024), ok1 && ok2
}

// usedPart is the memory that the holder's processes use.
func usedPart(_ *gpu.Readings, s ownerUse) (float64, bool) {
	return math.Round(float64(s.memory) * mebibyte), s.memoryKnown
}

// freePart divides the free memory, which has no owner, as the used memory is divided: used/(used+free) of each series
// is then that of the whole GPU.
func freePart(r *gpu.Readings, s ownerUse) (float64, bool) {
	free, known1 := r.Get(gpu.MemoryFree)
	used, known2 := r.Get(gpu.MemoryUsed)
	if !known1 || !known2 || !s.memoryKnown || used == 0 {
		return 0, known1 && known2 && s.memoryKnown
	}
	return math.Round(free * float64(s.memory) / used * mebibyte), true
}

// DCGM renders the input in dcgm-exporter's vocabulary. On a GPU that several pods share, a field that adds up, such as
// memory, has one series for each holder whose part is known, and one without pod labels for the rest. Everything else has one
// series for each GPU, with pod labels where one pod alone has it; the pods' parts are under berth_gpu_pod_*. As
// in dcgm-exporter a GPU instance of a partitioned GPU has series of its own.
func DCGM(in Input) []byte {
	t := &text{out: make([]byte, 0, 64<<10)}
	join(in).dcgm(t)
	return t.out
}

func (v *view) dcgm(t *text) {
	host := labels(cmp.Or(v.in.DCGMHostnameLabel, HostnameReleased), v.in.Node)
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
	for _, f := range fields() {
		t.name(f.name, f.kind, f.help, dcgmLabelNames()...)
		for i := range targets {
			if !f.mig || len(instances[i]) == 0 {
				f.series(t, &targets[i])
				continue
			}
			sum := 0.0
			for j := range instances[i] {
				sum += f.series(t, &instances[i][j])
			}
			// The rest of a partitioned GPU: in a sum, its own number would be counted twice beside those of its parts.
			if value, ok := f.of(targets[i].readings); ok && f.adds && value >= sum {
				t.series(f.name, value-sum, targets[i].labels...)
			}
		}
	}
	dcgmXIDs(t, targets)
}

// target is what series are written for: a GPU, or a GPU instance of a partitioned one.
type target struct {
	// gpu is nil for a GPU instance.
	gpu      *gpuView
	readings *gpu.Readings
	use      *use
	labels   []string
}

// series writes the series of a target for a field, and returns their sum.
func (f *field) series(t *text, on *target) float64 {
	value, ok := f.of(on.readings)
	if !ok {
		return 0
	}
	if !on.use.shared() {
		pod := ""
		if owner, held := on.use.holder(); held {
			pod = podLabels(owner)
		}
		t.series(f.name, value, append(on.labels, pod)...)
		return value
	}
	rest := value
	type known struct {
		owner Owner
		value float64
	}
	var parts []known
	for _, s := range on.use.byOwner {
		if f.part == nil || s.host {
			continue
		}
		if part, ok := f.part(on.readings, s); ok {
			parts = append(parts, known{s.Owner, part})
			rest -= part
		}
	}
	if rest < 0 {
		// The processes were measured at another moment than the GPU.
		parts, rest = nil, value
	}
	for _, part := range parts {
		t.series(f.name, part.value, append(on.labels, podLabels(part.owner))...)
	}
	t.series(f.name, rest, on.labels...)
	return value
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
		"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", HostnameReleased, "DCGM_FI_DRIVER_VERSION",
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

// dcgmXIDs writes the last XID of each GPU, 0 for none.
func dcgmXIDs(t *text, targets []target) {
	const name = "DCGM_FI_DEV_XID_ERRORS"
	t.name(name, gauge, "Last XID that was reported.", append(dcgmLabelNames(), "err_code", "err_msg")...)
	for i := range targets {
		last := XIDCount{}
		if xids := targets[i].gpu.xids; len(xids) > 0 {
			last = slices.MaxFunc(xids, func(a, b XIDCount) int { return a.Last.Compare(b.Last) })
		}
		pod := ""
		if owner, held := targets[i].use.holder(); held {
			pod = podLabels(owner)
		}
		t.series(name, float64(last.XID), append(targets[i].labels, pod,
			labels("err_code", strconv.FormatUint(last.XID, 10), "err_msg", xidMessage(last.XID)))...)
	}
}
