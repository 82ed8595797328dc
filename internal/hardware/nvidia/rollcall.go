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

// maxCards bounds what NVML's count is believed.
const maxCards = 256

// rollCall is who answered and who should have.
type rollCall struct {
	answering []found
	// lost are cards with an identity and no answer, their health filled in.
	lost []gpu.GPU
	// silent are cards that did not identify themselves this time.
	silent []*card
	faults []gpu.Cause
}

// found is a card that NVML gave a handle and an identity of.
type found struct {
	index  int
	device nvml.Device
	uuid   gpu.UUID
	pci    gpu.PCIAddress
	// deviceID is the PCI device and vendor ID, 0xDDDDVVVV.
	deviceID uint32
	// subsystemID is that of the board, 0xSSSSVVVV.
	subsystemID uint32
}

// failure is an index for which NVML did not give an identity.
type failure struct {
	index int
	call  string
	ret   nvml.Return
	pci   *gpu.PCIAddress
	// hung is true for a call that has not returned.
	hung bool
}

// enumerate calls the roll: NVML's indices first, then the names of those missing. broken says that the driver went
// away, missing that it did not say how many GPUs there are.
func (a *Adapter) enumerate() (roll rollCall, broken *gpu.Cause, missing *failure) {
	a.at("", "nvmlDeviceGetCount")
	count, ret := a.library.DeviceGetCount()
	switch {
	case ret == nvml.SUCCESS:
	case !gone(ret) && a.latestDriver().Present():
		return rollCall{}, nil, &failure{call: "nvmlDeviceGetCount", ret: ret}
	default:
		return rollCall{}, driverMissing("nvmlDeviceGetCount", ret), nil
	}
	count = min(count, maxCards)
	before := map[int]gpu.UUID{}
	for id, card := range a.known {
		before[card.Index] = id
	}
	var failures []failure
	for index := range count {
		card, failed := a.identifyInTime(index, before[index])
		switch {
		case failed == nil:
			roll.answering = append(roll.answering, card)
		case gone(failed.ret):
			return rollCall{}, driverMissing(failed.call, failed.ret), nil
		default:
			failures = append(failures, *failed)
		}
	}
	a.nameTheMissing(&roll, failures, count)
	return roll, nil, nil
}

// again makes a call on a GPU once more when it says that the GPU is lost: one that is lost says so again.
func again[T any](call func() (T, nvml.Return)) (T, nvml.Return) {
	value, ret := call()
	if ret == nvml.ERROR_GPU_IS_LOST {
		value, ret = call()
	}
	return value, ret
}

// identify asks one index for a handle, a place and a name. expected is who was there
// before, which is only told to Doing.
func (a *work) identify(index int, expected gpu.UUID, at func(gpu.UUID, string)) (found, *failure) {
	fail := func(call string, ret nvml.Return, pci *gpu.PCIAddress) (found, *failure) {
		return found{}, &failure{index: index, call: call, ret: ret, pci: pci}
	}
	at(expected, "nvmlDeviceGetHandleByIndex")
	device, ret := again(func() (nvml.Device, nvml.Return) { return a.library.DeviceGetHandleByIndex(index) })
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetHandleByIndex", ret, nil)
	}
	at(expected, "nvmlDeviceGetPciInfo")
	info, ret := again(device.GetPciInfo)
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetPciInfo", ret, nil)
	}
	pci := addressOf(info)
	at(expected, "nvmlDeviceGetUUID")
	uuid, ret := again(device.GetUUID)
	if ret == nvml.SUCCESS && uuid == "" {
		ret = nvml.ERROR_UNKNOWN
	}
	if ret != nvml.SUCCESS {
		return fail("nvmlDeviceGetUUID", ret, &pci)
	}
	return found{index: index, device: device, uuid: gpu.UUID(uuid), pci: pci, deviceID: info.PciDeviceId, subsystemID: info.PciSubSystemId}, nil
}

// addressOf prefers the text that NVML prints; its numbers lack the function.
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

// nameTheMissing gives failures and vanished cards their identity: from the last
// scan, else from the driver's list under /proc.
func (a *Adapter) nameTheMissing(roll *rollCall, failures []failure, count int) {
	missing := a.missing(roll)
	open := slices.Clone(failures)
	match := func(fits func(failure, gpu.GPU) bool) {
		open = slices.DeleteFunc(open, func(f failure) bool {
			at := slices.IndexFunc(missing, func(m missingCard) bool { return m.why == nil && fits(f, m.card) })
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

	next := count // numbers for cards that NVML no longer counts
	for _, m := range missing {
		switch {
		case m.card.UUID == "":
			roll.faults = append(roll.faults, unidentified(m))
			continue
		case m.why == nil && !known(a.known, m.card.UUID) && !a.sys.offBus(m.card.PCI):
			roll.faults = append(roll.faults, uncounted(m.card))
			continue
		case m.why != nil:
			m.card.Index = m.why.index
		default:
			m.card.Index = next
			next++
		}
		if m.why != nil && doubtful(m.why.ret) && m.why.ret != nvml.ERROR_RESET_REQUIRED {
			if before, ok := a.known[m.card.UUID]; ok && before.Health.State != gpu.Gone {
				roll.silent = append(roll.silent, a.silentCard(m.card.UUID, m.card.Index, *m.why))
				continue
			}
			m.card.MIG.Unsure, m.card.MIG.Unknown = true, true
			if m.why.hung {
				m.card.Health = gpu.Health{Partial: true, Causes: []gpu.Cause{timeoutCause(m.why.call, a.callDeadline)}}
				roll.lost = append(roll.lost, m.card)
				continue
			}
		}
		m.card.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{a.lostCause(m.card.PCI, m.why)}}
		roll.lost = append(roll.lost, m.card)
	}
	for _, f := range open {
		roll.faults = append(roll.faults, unidentified(missingCard{why: &f}))
	}
}

// missingCard is a card that did not answer the roll call; why is nil when NVML
// does not even count it.
type missingCard struct {
	card gpu.GPU
	why  *failure
}

// missing lists, in the order of PCI, the cards that the machine still has and that
// did not answer.
func (a *Adapter) missing(roll *rollCall) []missingCard {
	here := map[gpu.PCIAddress]bool{}
	answered := map[gpu.UUID]bool{}
	for _, card := range roll.answering {
		here[card.pci], answered[card.uuid] = true, true
	}
	at := map[gpu.PCIAddress]gpu.GPU{}
	for _, card := range a.procCards(here) {
		if !answered[card.UUID] {
			at[card.PCI] = card
		}
	}
	for id, card := range a.known {
		// Another card in the same slot means that this one was taken out.
		if answered[id] || here[card.PCI] {
			continue
		}
		at[card.PCI] = card
	}
	var cards []missingCard
	for _, address := range slices.SortedFunc(maps.Keys(at), comparePCI) {
		if a.sys.hasPCI(address) != absent {
			cards = append(cards, missingCard{card: at[address]})
		}
	}
	return cards
}

// procCards reads what the driver itself lists, as in
// /proc/driver/nvidia/gpus/0000:1b:00.0/information, except at the addresses that are
// known to answer. The UUID is empty when the driver
// has not read it from the card (it then prints question marks).
func (a *work) procCards(except map[gpu.PCIAddress]bool) []gpu.GPU {
	const folder = "driver/nvidia/gpus"
	var cards []gpu.GPU
	for _, name := range a.proc.names(folder) {
		address, err := gpu.ParsePCIAddress(name)
		if err != nil || except[address] {
			continue
		}
		content, err := a.proc.read(path.Join(folder, name, "information"))
		if err != nil {
			continue
		}
		if card, ok := parseInformation(content); ok {
			card.PCI = address
			card.NUMANode = a.sys.numaNode(address)
			card.Nodes = a.cardNodes(address, card.Minor)
			cards = append(cards, card)
		}
	}
	return cards
}

// parseInformation reads the driver's information file of a GPU; false when the
// driver was told to leave that GPU alone.
func parseInformation(content []byte) (gpu.GPU, bool) {
	values := fields(content)
	if strings.EqualFold(values["GPU Excluded"], "yes") {
		return gpu.GPU{}, false
	}
	card := gpu.GPU{Product: values["Model"], Minor: -1}
	if minor, err := strconv.ParseUint(values["Device Minor"], 10, 16); err == nil {
		card.Minor = int(minor)
	}
	uuid := values["GPU UUID"]
	if strings.HasPrefix(uuid, "GPU-") && !strings.Contains(uuid, "?") {
		card.UUID = gpu.UUID(uuid)
	}
	return card, true
}

// lostCause says why a card does not answer; why is nil when NVML does not count it.
func (a *work) lostCause(address gpu.PCIAddress, why *failure) gpu.Cause {
	evidence := "the driver no longer counts it"
	code := "GPU_LOST"
	if why != nil {
		evidence = fmt.Sprintf("%s returned %s", why.call, say(why.ret))
		switch why.ret {
		case nvml.ERROR_GPU_IS_LOST:
		case nvml.ERROR_RESET_REQUIRED:
			code = "GPU_RESET_REQUIRED"
		default:
			code = codeUnreadable
		}
	}
	if a.sys.offBus(address) {
		return unstamped("OFF_BUS", fmt.Sprintf(
			"the GPU at %s has fallen off the bus: its PCI configuration reads all ones; %s; reboot the node", address, evidence))
	}
	return unstamped(code, fmt.Sprintf("the GPU at %s does not answer: %s; reset the GPU or reboot the node", address, evidence))
}

func unidentified(m missingCard) gpu.Cause {
	who := "a GPU at " + m.card.PCI.String()
	if m.why != nil {
		who = fmt.Sprintf("the GPU with NVML index %d (%s returned %s)", m.why.index, m.why.call, say(m.why.ret))
	}
	return unstamped("GPU_UNIDENTIFIED",
		who+" does not answer, and neither an earlier scan nor /proc/driver/nvidia/gpus has its UUID; reset the GPU or reboot the node")
}

func uncounted(card gpu.GPU) gpu.Cause {
	return unstamped("GPU_NOT_COUNTED", fmt.Sprintf(
		"%s at %s is in /proc/driver/nvidia/gpus but NVML does not count it; check that this process can open /dev/nvidia%d",
		card.UUID, card.PCI, card.Minor))
}
