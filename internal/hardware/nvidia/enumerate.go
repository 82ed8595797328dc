package nvidia

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxGPUs bounds NVML's count of GPUs.
const maxGPUs = 256

// enumeration is the result of enumerate.
type enumeration struct {
	answering []identity
	// lost are GPUs with a known identity that do not answer, with their health.
	lost []gpu.GPU
	// silent are GPUs that a transient error prevented from being identified.
	silent []*scannedGPU
	faults []gpu.Cause
}

// identity is a GPU that NVML identified.
type identity struct {
	index  int
	device nvml.Device
	uuid   gpu.UUID
	pci    gpu.PCIAddress
	// deviceID is the PCI device and vendor ID, 0xDDDDVVVV.
	deviceID uint32
	// subsystemID is that of the board, 0xSSSSVVVV.
	subsystemID uint32
}

// failure is a call that failed, for a GPU of NVML's enumeration or the node.
type failure struct {
	index int
	call  string
	ret   nvml.Return
	pci   *gpu.PCIAddress
	// hung is true for a call that has not returned.
	hung bool
}

// enumerate identifies the GPUs by NVML's indices, then those that are missing. broken is set when the driver went away,
// missing when the GPUs could not be counted because of a transient error.
func (a *Adapter) enumerate() (result enumeration, broken *gpu.Cause, missing *failure) {
	a.at("", "nvmlDeviceGetCount")
	count, ret := a.library.DeviceGetCount()
	switch {
	case ret == nvml.SUCCESS:
	case !driverGone(ret) && a.latestDriver().Present():
		return enumeration{}, nil, &failure{call: "nvmlDeviceGetCount", ret: ret}
	default:
		return enumeration{}, driverMissing("nvmlDeviceGetCount", ret), nil
	}
	count = min(count, maxGPUs)
	before := map[int]gpu.UUID{}
	for id, g := range a.known {
		before[g.Index] = id
	}
	var failures []failure
	for index := range count {
		g, failed := a.identifyInTime(index, before[index])
		switch {
		case failed == nil:
			result.answering = append(result.answering, g)
		case driverGone(failed.ret):
			return enumeration{}, driverMissing(failed.call, failed.ret), nil
		default:
			failures = append(failures, *failed)
		}
	}
	a.identifyMissing(&result, failures, count)
	return result, nil, nil
}

// retryLost repeats a call that returned GPU_IS_LOST: the code is the same again if the GPU is lost.
func retryLost[T any](call func() (T, nvml.Return)) (T, nvml.Return) {
	value, ret := call()
	if ret == nvml.ERROR_GPU_IS_LOST {
		value, ret = call()
	}
	return value, ret
}

// identify reads the handle, the PCI address and the UUID of the GPU at an index. expected is the GPU that had the index
// before, for Doing.
func (a *work) identify(index int, expected gpu.UUID, at func(gpu.UUID, string)) (identity, *failure) {
	fail := func(call string, ret nvml.Return, pci *gpu.PCIAddress) (identity, *failure) {
		return identity{}, &failure{index: index, call: call, ret: ret, pci: pci}
	}
	at(expected, "nvmlDeviceGetHandleByIndex")
	device, ret := retryLost(func() (nvml.Device, nvml.Return) { return a.library.DeviceGetHandleByIndex(index) })
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetHandleByIndex", ret, nil)
	}
	at(expected, "nvmlDeviceGetPciInfo")
	info, ret := retryLost(device.GetPciInfo)
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetPciInfo", ret, nil)
	}
	pci := addressOf(info)
	at(expected, "nvmlDeviceGetUUID")
	uuid, ret := retryLost(device.GetUUID)
	if ret == nvml.SUCCESS && uuid == "" {
		ret = nvml.ERROR_UNKNOWN
	}
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetUUID", ret, &pci)
	}
	return identity{index: index, device: device, uuid: gpu.UUID(uuid), pci: pci, deviceID: info.PciDeviceId, subsystemID: info.PciSubSystemId}, nil
}

// addressOf parses the address that NVML prints, since its numbers lack the function.
func addressOf(info nvml.PciInfo) gpu.PCIAddress {
	var text strings.Builder
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		text.WriteByte(byte(c))
	}
	if address, err := gpu.ParsePCIAddress(text.String()); err == nil {
		return address
	}
	return gpu.PCIAddress{Domain: info.Domain, Bus: uint8(info.Bus), Device: uint8(info.Device)}
}

// identifyMissing finds the identities of the GPUs that failed or vanished: in the last scan, otherwise in the driver's list
// below /proc.
func (a *Adapter) identifyMissing(result *enumeration, failures []failure, count int) {
	missing := a.missing(result)
	open := slices.Clone(failures)
	match := func(fits func(failure, gpu.GPU) bool) {
		open = slices.DeleteFunc(open, func(f failure) bool {
			at := slices.IndexFunc(missing, func(m missingGPU) bool { return m.why == nil && fits(f, m.gpu) })
			if at < 0 {
				return false
			}
			missing[at].why = &f
			return true
		})
	}
	match(func(f failure, c gpu.GPU) bool { return f.pci != nil && *f.pci == c.PCI })
	match(func(f failure, c gpu.GPU) bool { return f.pci == nil && f.index == c.Index && known(a.known, c.UUID) })
	match(func(f failure, c gpu.GPU) bool { return f.pci == nil })

	next := count // numbers for GPUs that NVML no longer counts
	for _, m := range missing {
		switch {
		case m.gpu.UUID == "":
			result.faults = append(result.faults, unidentified(m))
			continue
		case m.why == nil && !known(a.known, m.gpu.UUID) && !a.sys.offBus(m.gpu.PCI):
			result.faults = append(result.faults, uncounted(m.gpu))
			continue
		case m.why != nil:
			m.gpu.Index = m.why.index
		default:
			m.gpu.Index = next
			next++
		}
		if m.why != nil && mayAnswer(m.why.ret) {
			if before, ok := a.known[m.gpu.UUID]; ok && before.Health.State != gpu.Gone {
				result.silent = append(result.silent, a.silentGPU(m.gpu.UUID, m.gpu.Index, *m.why))
				continue
			}
			m.gpu.MIG.Unsure, m.gpu.MIG.Unknown = true, true
			if m.why.hung {
				m.gpu.Health = gpu.Health{Partial: true, Causes: []gpu.Cause{timeoutCause(m.why.call, a.callDeadline)}}
				result.lost = append(result.lost, m.gpu)
				continue
			}
		}
		m.gpu.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{a.lostCause(m.gpu.PCI, m.why)}}
		result.lost = append(result.lost, m.gpu)
	}
	for _, f := range open {
		result.faults = append(result.faults, unidentified(missingGPU{why: &f}))
	}
}

// mayAnswer reports whether a GPU that was identified before may answer the next time, by the return code of a call that identifies it.
func mayAnswer(ret nvml.Return) bool {
	return (transient(ret) || withoutValue(ret)) && ret != nvml.ERROR_RESET_REQUIRED
}

// missingGPU is a GPU that was not identified; why is nil when NVML does not count it.
type missingGPU struct {
	gpu gpu.GPU
	why *failure
}

// missing lists the GPUs that the machine still has and that did not answer, by PCI address.
func (a *Adapter) missing(result *enumeration) []missingGPU {
	here := map[gpu.PCIAddress]bool{}
	answered := map[gpu.UUID]bool{}
	for _, g := range result.answering {
		here[g.pci], answered[g.uuid] = true, true
	}
	at := map[gpu.PCIAddress]gpu.GPU{}
	for _, g := range a.listedGPUs(here) {
		if !answered[g.UUID] {
			at[g.PCI] = g
		}
	}
	for id, g := range a.known {
		// Another GPU in the same slot means that this one was taken out.
		if answered[id] || here[g.PCI] {
			continue
		}
		at[g.PCI] = g
	}
	var gpus []missingGPU
	for _, address := range slices.SortedFunc(maps.Keys(at), comparePCI) {
		if a.sys.hasPCI(address) != absent {
			gpus = append(gpus, missingGPU{gpu: at[address]})
		}
	}
	return gpus
}

// listedGPUs reads the driver's list of GPUs, as in /proc/driver/nvidia/gpus/0000:1b:00.0/information, without the given
// addresses. The UUID is empty when the driver has not read it (it prints question marks then).
func (a *work) listedGPUs(except map[gpu.PCIAddress]bool) []gpu.GPU {
	const dir = "driver/nvidia/gpus"
	var gpus []gpu.GPU
	for _, name := range a.proc.names(dir) {
		address, err := gpu.ParsePCIAddress(name)
		if err != nil || except[address] {
			continue
		}
		content, err := a.proc.read(path.Join(dir, name, "information"))
		if err != nil {
			continue
		}
		if g, ok := parseInformation(content); ok {
			g.PCI = address
			g.NUMANode, g.PCIeRoot = a.sys.numaNode(address), a.sys.pcieRoot(address)
			g.Nodes = a.gpuNodes(address, g.Minor)
			gpus = append(gpus, g)
		}
	}
	return gpus
}

// parseInformation parses the driver's information file of a GPU; false when the driver excludes the GPU.
func parseInformation(content []byte) (gpu.GPU, bool) {
	values := fields(content)
	if strings.EqualFold(values["GPU Excluded"], "yes") {
		return gpu.GPU{}, false
	}
	g := gpu.GPU{Product: values["Model"], Minor: -1}
	if minor, err := strconv.ParseUint(values["Device Minor"], 10, 16); err == nil {
		g.Minor = int(minor)
	}
	uuid := values["GPU UUID"]
	if strings.HasPrefix(uuid, "GPU-") && !strings.Contains(uuid, "?") {
		g.UUID = gpu.UUID(uuid)
	}
	return g, true
}

// lostCause returns the cause for a GPU that does not answer; why is nil when NVML does not count it.
func (a *work) lostCause(address gpu.PCIAddress, why *failure) gpu.Cause {
	evidence := "the driver no longer counts it"
	code := "GPU_LOST"
	if why != nil {
		evidence = fmt.Sprintf("%s returned %s", why.call, codeName(why.ret))
		switch why.ret {
		case nvml.ERROR_GPU_IS_LOST:
		case nvml.ERROR_RESET_REQUIRED:
			code = "GPU_RESET_REQUIRED"
		default:
			code = codeUnreadable
		}
	}
	if a.sys.offBus(address) {
		return newCause("OFF_BUS", fmt.Sprintf(
			"the GPU at %s has fallen off the bus: its PCI configuration reads all ones; %s; reboot the node", address, evidence))
	}
	return newCause(code, fmt.Sprintf("the GPU at %s does not answer: %s; reset the GPU or reboot the node", address, evidence))
}

func unidentified(m missingGPU) gpu.Cause {
	target := "a GPU at " + m.gpu.PCI.String()
	if m.why != nil {
		target = fmt.Sprintf("the GPU with NVML index %d (%s returned %s)", m.why.index, m.why.call, codeName(m.why.ret))
	}
	return newCause("GPU_UNIDENTIFIED",
		target+" does not answer, and neither an earlier scan nor /proc/driver/nvidia/gpus has its UUID; reset the GPU or reboot the node")
}

func uncounted(g gpu.GPU) gpu.Cause {
	return newCause("GPU_NOT_COUNTED", fmt.Sprintf(
		"%s at %s is in /proc/driver/nvidia/gpus but NVML does not count it; check that this process can open /dev/nvidia%d",
		g.UUID, g.PCI, g.Minor))
}
