package nvidia

import (
	"fmt"
	"log/slog"
	"path"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// scannedGPU is a GPU during one scan, with the inputs of the topology.
type scannedGPU struct {
	gpu            gpu.GPU
	device         nvml.Device // nil for a GPU that does not answer
	links          linkCounts
	fabric         nvml.GpuFabricInfo
	broken         *gpu.Cause // the driver went away while it was read
	missingAnswers []missingAnswer
}

// facts are values that do not change while a driver runs.
type facts struct {
	pci          gpu.PCIAddress
	minor        int
	product      string
	architecture string
	capability   gpu.Version
	memory       uint64
	numa         int
	pcieRoot     string
}

// caller makes NVML calls about one GPU and records their failures. It makes no further calls once the GPU is lost.
type caller struct {
	gpu gpu.UUID
	// at is called before each call.
	at  func(id gpu.UUID, call string)
	log *slog.Logger
	// lost is the first call that reported the GPU as lost.
	lost *failure
	// reset is the first call that reported that the GPU needs a reset.
	reset *failure
	// broken is set when the driver went away.
	broken *gpu.Cause
	// missing is the first call that failed with a transient error, or has no value although expected has it.
	missing  *failure
	expected expectation
	// answered collects the calls that returned a value; nil outside of a group.
	answered map[string]bool
}

// invoke makes one NVML call; false when it returned no value.
func invoke[T any](q *caller, call string, f func() (T, nvml.Return)) (T, bool) {
	return invokeFor(q, call, "", f)
}

// invokeAt is invoke for one of several parts of a GPU, of which some may have no value.
func invokeAt[T any](q *caller, call string, number int, f func() (T, nvml.Return)) (T, bool) {
	return invokeFor(q, call, strconv.Itoa(number), f)
}

func invokeFor[T any](q *caller, call, part string, f func() (T, nvml.Return)) (T, bool) {
	var none T
	if q.lost != nil || q.broken != nil {
		return none, false
	}
	q.at(q.gpu, call)
	value, ret := retryLost(f)
	if !q.accept(call, part, ret) {
		return none, false
	}
	return value, true
}

// accept records the return code of a call for a part of the GPU, and reports whether there is a value.
func (q *caller) accept(call, part string, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		if q.answered != nil {
			q.answered[call+part] = true
		}
		return true
	case driverGone(ret):
		q.broken = driverMissing(call, ret)
	case ret == nvml.ERROR_GPU_IS_LOST:
		q.lost = &failure{call: call, ret: ret}
	case ret == nvml.ERROR_RESET_REQUIRED:
		if q.reset == nil {
			q.reset = &failure{call: call, ret: ret}
		}
		q.addMissing(call, ret)
	case !transient(ret) && !q.expected.has(call+part, ret):
	default:
		q.addMissing(call, ret)
		q.log.Debug("NVML call failed", "gpu", q.gpu, "call", call, "return", codeName(ret))
	}
	return false
}

func (q *caller) addMissing(call string, ret nvml.Return) {
	if q.missing == nil {
		q.missing = &failure{call: call, ret: ret}
	}
}

// readGPU reads all of a GPU.
func (a *work) readGPU(target identity, at func(gpu.UUID, string)) *scannedGPU {
	q := &caller{gpu: target.uuid, at: at, log: a.log}
	m := a.cache(target.uuid)
	m.silent = 0
	c := &scannedGPU{device: target.device, gpu: gpu.GPU{UUID: target.uuid, Index: target.index, PCI: target.pci, DeviceID: target.deviceID, SubsystemID: target.subsystemID}}
	known := a.readFacts(q, c, m, target)
	c.gpu.Minor, c.gpu.Product, c.gpu.Architecture = known.minor, known.product, known.architecture
	c.gpu.ComputeCapability, c.gpu.MemoryBytes, c.gpu.NUMANode = known.capability, known.memory, known.numa
	c.gpu.PCIeRoot = known.pcieRoot
	c.fabric = readCached(q, c, &m.fabric, false, func() nvml.GpuFabricInfo { return a.readFabric(q, target.device) })
	c.gpu.Clique = cliqueOf(c.fabric)
	c.gpu.MIG = a.readMIG(q, c, m, target, known)
	c.gpu.Nodes = a.gpuNodes(target.pci, known.minor)
	c.links = readCached(q, c, &m.links, false, func() linkCounts { return a.readLinks(q, target) })
	c.gpu.Health.Causes, c.gpu.Health.Recovery, c.gpu.Life = a.check(q, c, m)
	c.gpu.Health.Causes = append(c.gpu.Health.Causes, readFailures(c.missingAnswers)...)
	switch {
	case q.broken != nil:
		c.broken = q.broken
	case q.lost != nil:
		c.markLost(a, q.lost)
	}
	return c
}

// markLost replaces a GPU that was lost during the scan by what the last scan read, or by what the driver lists.
func (c *scannedGPU) markLost(a *work, why *failure) {
	before, ok := a.known[c.gpu.UUID]
	for _, listed := range a.listedGPUs(nil) {
		if !ok && listed.UUID == c.gpu.UUID {
			before, ok = listed, true
		}
	}
	if ok {
		before.Index, before.PCI = c.gpu.Index, c.gpu.PCI
		c.gpu = before
	}
	c.device, c.links = nil, linkCounts{}
	a.cache(c.gpu.UUID).invalidate() // it comes back with a reset
	c.gpu.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{a.lostCause(c.gpu.PCI, why)}}
}

// readFacts reads the facts once for each GPU and session, or until every call succeeded.
func (a *work) readFacts(q *caller, c *scannedGPU, m *cache, target identity) facts {
	if m.facts.value.pci != target.pci {
		m.facts = cached[facts]{}
	}
	if m.facts.current {
		return m.facts.value
	}
	return readCached(q, c, &m.facts, true, func() facts { return a.queryFacts(q, target) })
}

func (a *work) queryFacts(q *caller, target identity) facts {
	d := target.device
	f := facts{pci: target.pci, minor: -1, numa: a.sys.numaNode(target.pci), pcieRoot: a.sys.pcieRoot(target.pci)}
	minor, ok := invoke(q, "nvmlDeviceGetMinorNumber", d.GetMinorNumber)
	if ok {
		f.minor = minor
	} else if content, err := a.proc.read(path.Join("driver/nvidia/gpus", target.pci.String(), "information")); err == nil {
		listed, _ := parseInformation(content)
		f.minor = listed.Minor
	}
	f.product, _ = invoke(q, "nvmlDeviceGetName", d.GetName)
	if a.exports("nvmlDeviceGetArchitecture") {
		if family, ok := invoke(q, "nvmlDeviceGetArchitecture", d.GetArchitecture); ok {
			f.architecture = architecture(family)
		}
	}
	f.capability, _ = invoke(q, "nvmlDeviceGetCudaComputeCapability", func() (gpu.Version, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return gpu.Version{Major: major, Minor: minor}, ret
	})
	f.memory = a.readTotal(q, d)
	return f
}

// readTotal returns the size of a GPU's memory in bytes; 0 if it is not known. A GPU without memory of its own, such as a GB10, uses the
// host's.
func (a *work) readTotal(q *caller, d nvml.Device) uint64 {
	none := false
	memory, _ := invoke(q, "nvmlDeviceGetMemoryInfo", func() (nvml.Memory, nvml.Return) {
		memory, ret := d.GetMemoryInfo()
		none = ret == nvml.ERROR_NOT_SUPPORTED
		return memory, ret
	})
	if none {
		return a.sys.hostMemory()
	}
	return memory.Total
}

// architecture returns the name that nvidia-smi -q prints as Product Architecture.
func architecture(family nvml.DeviceArchitecture) string {
	switch family {
	case nvml.DEVICE_ARCH_KEPLER:
		return "Kepler"
	case nvml.DEVICE_ARCH_MAXWELL:
		return "Maxwell"
	case nvml.DEVICE_ARCH_PASCAL:
		return "Pascal"
	case nvml.DEVICE_ARCH_VOLTA:
		return "Volta"
	case nvml.DEVICE_ARCH_TURING:
		return "Turing"
	case nvml.DEVICE_ARCH_AMPERE:
		return "Ampere"
	case nvml.DEVICE_ARCH_ADA:
		return "Ada Lovelace"
	case nvml.DEVICE_ARCH_HOPPER:
		return "Hopper"
	case nvml.DEVICE_ARCH_BLACKWELL:
		return "Blackwell"
	case nvml.DEVICE_ARCH_RUBIN:
		return "Rubin"
	}
	return ""
}

// readFabric returns the GPU's registration with an NVLink fabric; zero for a GPU that has none.
func (a *work) readFabric(q *caller, d nvml.Device) nvml.GpuFabricInfo {
	if !a.exports("nvmlDeviceGetGpuFabricInfo") {
		return nvml.GpuFabricInfo{}
	}
	info, _ := invoke(q, "nvmlDeviceGetGpuFabricInfo", d.GetGpuFabricInfo)
	return info
}

// cliqueOf returns the NVLink domain; only a finished registration counts.
func cliqueOf(info nvml.GpuFabricInfo) gpu.Clique {
	if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || info.ClusterUuid == [16]uint8{} {
		return gpu.Clique{}
	}
	u := info.ClusterUuid
	return gpu.Clique{
		ClusterUUID: fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]),
		ID:          info.CliqueId,
	}
}
