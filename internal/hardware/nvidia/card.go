package nvidia

import (
	"fmt"
	"log/slog"
	"path"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// card is a GPU during one scan, with what the topology needs of it.
type card struct {
	gpu    gpu.GPU
	device nvml.Device // nil for a card that does not answer
	links  linkCounts
	fabric nvml.GpuFabricInfo
	broken *gpu.Cause // the driver went away while it was read
	doubts []doubt
}

// facts are what does not change while a driver runs.
type facts struct {
	pci          gpu.PCIAddress
	minor        int
	product      string
	architecture string
	capability   gpu.Version
	memory       uint64
	numa         int
}

// question asks one card and remembers what its answers say beyond their values. A
// card that proved lost is not asked again.
type question struct {
	card gpu.UUID
	// at is told of each call before it is made.
	at  func(card gpu.UUID, call string)
	log *slog.Logger
	// lost is the first answer that said that the card is not there.
	lost *failure
	// reset is the first answer that said that the card needs a reset.
	reset *failure
	// broken is set when the driver went away.
	broken *gpu.Cause
	// missing is the first answer that did not come for no lasting reason.
	missing *failure
}

// ask makes one NVML call. False means that there is no value, for whatever reason.
func ask[T any](q *question, call string, f func() (T, nvml.Return)) (T, bool) {
	var none T
	if q.lost != nil || q.broken != nil {
		return none, false
	}
	q.at(q.card, call)
	value, ret := again(f)
	if !q.understand(call, ret) {
		return none, false
	}
	return value, true
}

func (q *question) understand(call string, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		return true
	case gone(ret):
		q.broken = driverMissing(call, ret)
	case ret == nvml.ERROR_GPU_IS_LOST:
		q.lost = &failure{call: call, ret: ret}
	case ret == nvml.ERROR_RESET_REQUIRED:
		if q.reset == nil {
			q.reset = &failure{call: call, ret: ret}
		}
		q.miss(call, ret)
	case !doubtful(ret):
	default:
		q.miss(call, ret)
		q.log.Debug("NVML call failed", "gpu", q.card, "call", call, "return", say(ret))
	}
	return false
}

func (q *question) miss(call string, ret nvml.Return) {
	if q.missing == nil {
		q.missing = &failure{call: call, ret: ret}
	}
}

// readCard asks a card everything.
func (a *work) readCard(who found, at func(gpu.UUID, string)) *card {
	q := &question{card: who.uuid, at: at, log: a.log}
	m := a.memories(who.uuid)
	m.silent = 0
	c := &card{device: who.device, gpu: gpu.GPU{UUID: who.uuid, Index: who.index, PCI: who.pci, DeviceID: who.deviceID, SubsystemID: who.subsystemID}}
	known := a.readFacts(q, c, m, who)
	c.gpu.Minor, c.gpu.Product, c.gpu.Architecture = known.minor, known.product, known.architecture
	c.gpu.ComputeCapability, c.gpu.MemoryBytes, c.gpu.NUMANode = known.capability, known.memory, known.numa
	c.fabric = settled(q, c, &m.fabric, false, func() nvml.GpuFabricInfo { return a.readFabric(q, who.device) })
	c.gpu.Clique = cliqueOf(c.fabric)
	c.gpu.MIG = a.readMIG(q, c, m, who, known)
	c.gpu.Nodes = a.cardNodes(who.pci, known.minor)
	c.links = settled(q, c, &m.links, false, func() linkCounts { return a.readLinks(q, who) })
	c.gpu.Health.Causes, c.gpu.Health.Recovery, c.gpu.Life = a.check(q, c, m)
	c.gpu.Health.Causes = append(c.gpu.Health.Causes, causesOf(c.doubts)...)
	switch {
	case q.broken != nil:
		c.broken = q.broken
	case q.lost != nil:
		c.lose(a, q.lost)
	}
	return c
}

// lose turns a card that stopped answering in the middle into a lost one: as it was
// in the last scan, or else as the driver lists it.
func (c *card) lose(a *work, why *failure) {
	before, ok := a.known[c.gpu.UUID]
	for _, listed := range a.procCards(nil) {
		if !ok && listed.UUID == c.gpu.UUID {
			before, ok = listed, true
		}
	}
	if ok {
		before.Index, before.PCI = c.gpu.Index, c.gpu.PCI
		c.gpu = before
	}
	c.device, c.links = nil, linkCounts{}
	a.memories(c.gpu.UUID).void() // it comes back through a reset
	c.gpu.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{a.lostCause(c.gpu.PCI, why)}}
}

// readFacts asks once for each card and session, or until every answer came.
func (a *work) readFacts(q *question, c *card, m *memories, who found) facts {
	if m.facts.value.pci != who.pci {
		m.facts = memory[facts]{}
	}
	if m.facts.current {
		return m.facts.value
	}
	return settled(q, c, &m.facts, true, func() facts { return a.askFacts(q, who) })
}

func (a *work) askFacts(q *question, who found) facts {
	d := who.device
	f := facts{pci: who.pci, minor: -1, numa: a.sys.numaNode(who.pci)}
	minor, ok := ask(q, "nvmlDeviceGetMinorNumber", d.GetMinorNumber)
	if ok {
		f.minor = minor
	} else if content, err := a.proc.read(path.Join("driver/nvidia/gpus", who.pci.String(), "information")); err == nil {
		listed, _ := parseInformation(content)
		f.minor = listed.Minor
	}
	f.product, _ = ask(q, "nvmlDeviceGetName", d.GetName)
	if a.exports("nvmlDeviceGetArchitecture") {
		if family, ok := ask(q, "nvmlDeviceGetArchitecture", d.GetArchitecture); ok {
			f.architecture = architecture(family)
		}
	}
	f.capability, _ = ask(q, "nvmlDeviceGetCudaComputeCapability", func() (gpu.Version, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return gpu.Version{Major: major, Minor: minor}, ret
	})
	memory, _ := ask(q, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo)
	f.memory = memory.Total
	return f
}

// architecture is the name that nvidia-smi -q prints as Product Architecture.
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

// readFabric asks for the card's registration with an NVLink fabric; zero for a card that has none.
func (a *work) readFabric(q *question, d nvml.Device) nvml.GpuFabricInfo {
	if !a.exports("nvmlDeviceGetGpuFabricInfo") {
		return nvml.GpuFabricInfo{}
	}
	info, _ := ask(q, "nvmlDeviceGetGpuFabricInfo", d.GetGpuFabricInfo)
	return info
}

// cliqueOf is the NVLink domain; only a finished registration counts.
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
