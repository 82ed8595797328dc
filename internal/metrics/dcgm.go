package metrics

import (
	"math"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/gpu"
)

// field is one of dcgm-exporter's default counters.
type field struct {
	name string
	kind kind
	help string
	// of says how the number follows from the readings.
	of func(*gpu.Readings) (float64, bool)
	// mig tells that a MIG device has it of its own.
	mig bool
	// part says what an owner's part of a shared device is; nil for what concerns all alike.
	part func(share) (float64, bool)
}

// scaled is a measure in another unit.
func scaled(m gpu.Measure, scale float64) func(*gpu.Readings) (float64, bool) {
	return func(r *gpu.Readings) (float64, bool) {
		value, ok := r.Get(m)
		return value * scale, ok
	}
}

// whole is scaled to a whole number, as NVML had it.
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
		{name: "DCGM_FI_DEV_GPU_UTIL", kind: gauge, help: "GPU utilization (%).", of: whole(gpu.UtilizationGPU, 100),
			part: func(s share) (float64, bool) { return math.Round(s.sm * 100), s.activityKnown }},
		{name: "DCGM_FI_DEV_MEM_COPY_UTIL", kind: gauge, help: "Memory utilization (%).", of: whole(gpu.UtilizationMemory, 100),
			part: func(s share) (float64, bool) { return math.Round(s.bandwidth * 100), s.activityKnown }},
		{name: "DCGM_FI_DEV_ENC_UTIL", kind: gauge, help: "Encoder utilization (%).", of: whole(gpu.UtilizationEncoder, 100),
			part: func(s share) (float64, bool) { return math.Round(s.encode * 100), s.activityKnown }},
		{name: "DCGM_FI_DEV_DEC_UTIL", kind: gauge, help: "Decoder utilization (%).", of: whole(gpu.UtilizationDecoder, 100),
			part: func(s share) (float64, bool) { return math.Round(s.decode * 100), s.activityKnown }},
		{name: "DCGM_FI_DEV_FB_FREE", kind: gauge, help: "Free memory (MiB).", of: whole(gpu.MemoryFree, mebibyte), mig: true},
		{name: "DCGM_FI_DEV_FB_USED", kind: gauge, help: "Used memory (MiB).", of: whole(gpu.MemoryUsed, mebibyte), mig: true,
			part: func(s share) (float64, bool) { return math.Round(float64(s.memory) * mebibyte), s.memoryKnown }},
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

// DCGM renders the input in dcgm-exporter's vocabulary. A device that several pods share has one series for each pod
// where its part is known, and otherwise one without a pod.
func DCGM(in Input) []byte {
	v := join(in)
	t := &text{out: make([]byte, 0, 64<<10)}
	names := make([]cardLabels, len(v.cards))
	for i := range v.cards {
		names[i] = v.dcgmLabels(&v.cards[i])
	}
	version := ""
	if in.Snapshot != nil {
		version = labels("DCGM_FI_DRIVER_VERSION", in.Snapshot.Driver.Version)
	}
	host := labels("hostname", in.Node)
	for _, f := range fields() {
		t.name(f.name, f.kind, f.help)
		for i := range v.cards {
			c := &v.cards[i]
			if !f.mig || len(c.devices) == 0 {
				f.series(t, &c.sample.Readings, &c.use, names[i].card, host, version)
				continue
			}
			// A partitioned card's own number beside its parts' would be counted twice in a sum.
			for j := range c.devices {
				f.series(t, &c.devices[j].sample.Readings, &c.devices[j].use, names[i].devices[j], host, version)
			}
		}
	}
	v.dcgmXIDs(t, names, host, version)
	return t.out
}

func (f *field) series(t *text, readings *gpu.Readings, u *use, device, host, version string) {
	value, ok := f.of(readings)
	if f.part != nil && u.shared() {
		written := false
		for _, s := range u.shares {
			if part, known := f.part(s); known && !s.host {
				t.series(f.name, part, device, host, version, podLabels(s.Owner))
				written = true
			}
		}
		if written {
			return
		}
	}
	if !ok {
		return
	}
	owner, held := u.holder()
	pod := ""
	if held {
		pod = podLabels(owner)
	}
	t.series(f.name, value, device, host, version, pod)
}

func podLabels(o Owner) string {
	return labels("pod", o.Pod, "namespace", o.Namespace, "container", o.Container)
}

func (v *view) dcgmLabels(c *cardView) cardLabels {
	l := cardLabels{card: labels("gpu", strconv.Itoa(c.Index), "UUID", string(c.UUID), "pci_bus_id", nvmlBusID(c.PCI),
		"device", "nvidia"+strconv.Itoa(c.Minor), "modelName", c.Product)}
	for i := range c.devices {
		l.devices = append(l.devices, l.card+","+labels("GPU_I_PROFILE", c.devices[i].Profile, "GPU_I_ID", strconv.Itoa(c.devices[i].GI)))
	}
	return l
}

// nvmlBusID has eight digits of the domain and capital letters.
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

// dcgmXIDs writes the last XID of each card that was asked, 0 for none.
func (v *view) dcgmXIDs(t *text, names []cardLabels, host, version string) {
	const name = "DCGM_FI_DEV_XID_ERRORS"
	t.name(name, gauge, "Last XID that was reported.")
	for i := range v.cards {
		c := &v.cards[i]
		last := XIDCount{Title: "No Error"}
		if len(c.xids) > 0 {
			last = slices.MaxFunc(c.xids, func(a, b XIDCount) int { return a.Last.Compare(b.Last) })
		}
		pod := ""
		if owner, held := c.use.holder(); held {
			pod = podLabels(owner)
		}
		t.series(name, float64(last.XID), names[i].card, host, version, pod,
			labels("err_code", strconv.FormatUint(last.XID, 10), "err_msg", last.Title))
	}
}
