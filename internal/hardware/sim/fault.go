package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// Fault is what to break. The zero value of a field changes nothing. Faults accumulate until Clear.
type Fault struct {
	// GPU is a slot number ("0", the NVML index while no GPU is removed) or a GPU UUID. XID and Busy also accept a MIG
	// UUID. DriverGone, CUDA, and a Transient of the library, need no GPU.
	GPU string
	// XID is reported to event sets. The GPU keeps working, and the driver reports a recovery action only where another
	// field requires it. XID 94 counts one uncorrectable error in DRAM, as the driver does when it contains an error.
	XID uint64
	// LogOnly writes the XID to the kernel log only; NVML does not report every XID.
	LogOnly bool
	// Log is a line that is written to the kernel log unchanged.
	Log string
	// Lost makes every call return ERROR_GPU_IS_LOST and reports XID 79. LostSilently reports no XID.
	Lost         bool
	LostSilently bool
	// OffBus implies Lost; in addition the GPU's PCI configuration space reads as ones.
	OffBus bool
	// ECC adds double-bit errors in DRAM, ECCSRAM uncorrectable errors in SRAM. Both also report XID 48.
	ECC     uint64
	ECCSRAM uint64
	// Temperature is in degrees Celsius.
	Temperature int
	// RowRemap is "pending" (XID 63) or "failed" (XID 64).
	RowRemap string
	// NVLinksDown lists the links to take down. If the other end is a GPU, that end goes down too. AllNVLinksDown takes
	// down all links.
	NVLinksDown    []int
	AllNVLinksDown bool
	// RetiredPages sets a memory page pending retirement, on GPUs before Ampere.
	RetiredPages bool
	// Throttle is "hw", "thermal" or "power-brake": the reason why the hardware reduces the clocks.
	Throttle string
	// Fabric is "not-started", "in-progress" or "failed": the state of the GPU's registration with its NVLink fabric.
	Fabric string
	// NVLinkErrors is added to the replay counter of the links.
	NVLinkErrors uint64
	// Recovery is the recovery action (NVML field 230) that the driver reports regardless of other faults: one of
	// RecoveryActions, or RecoveryUnsupported. Until RecoveryAfter has passed the driver reports None. If Recovery is
	// empty, the action follows from the damage that a scan can find: memory errors, row remapping, links, a lost GPU.
	Recovery      string
	RecoveryAfter time.Duration
	// Hang is a call of nvml.Device ("GetTemperature"), a call of the library that opens this GPU
	// ("DeviceGetHandleByIndex"), a call of its MIG instances ("CreateComputeInstance", "Destroy"), or "all".
	// Each such call takes HangFor; 0 means until Clear.
	Hang    string
	HangFor time.Duration
	// Transient makes a call fail for a limited time. Without a GPU it is a call of the library.
	Transient TransientError
	// CUDA is a fault of libcuda.so.1, for the machine or for a GPU: CALL=RESULT (a CUresult, such as cuInit=999), wrong (a wrong
	// sum) or hang=CALL; without a GPU also count=N (N more devices, or less than 0 fewer), major=N (the kernel module's version)
	// or missing.
	CUDA string
	// Busy simulates a process on the GPU or MIG device: NVML lists it, and operations that need an idle GPU (a reset,
	// a change of the MIG mode, the destruction of the instance) fail.
	Busy bool
	// Remove removes the GPU from the running machine (hot unplug).
	Remove bool
	// DriverGone unloads the driver: its files, /proc entries, device nodes and NVML disappear. Clear("driver") or
	// Clear("all") loads it again.
	DriverGone bool
}

// The values of Fault.RowRemap.
const (
	RowRemapPending = "pending"
	RowRemapFailed  = "failed"
)

// The values of Fault.Throttle.
const (
	ThrottleHW         = "hw"
	ThrottleThermal    = "thermal"
	ThrottlePowerBrake = "power-brake"
)

// The values of Fault.Fabric.
const (
	FabricNotStarted = "not-started"
	FabricInProgress = "in-progress"
	FabricFailed     = "failed"
)

// RecoveryActions lists the values of Fault.Recovery, indexed by NVML's number of the action.
func RecoveryActions() []string {
	return []string{
		"none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot",
	}
}

// RecoveryUnsupported as Fault.Recovery simulates a driver without field 230.
const RecoveryUnsupported = "unsupported"

// AllCalls as Fault.Hang means every call that concerns the GPU.
const AllCalls = "all"

// The arguments of Clear, besides a GPU reference.
const (
	ClearAll    = "all"
	ClearDriver = "driver"
)

// The XIDs that faults report (NVIDIA's XID catalogue).
const (
	xidDoubleBitECC   = 48
	xidRowRemap       = 63
	xidRowRemapFailed = 64
	xidNVLink         = 74
	xidOffBus         = 79
	xidContained      = 94
)

// maxTemperature is the upper bound of Fault.Temperature.
const maxTemperature = 255

// recovery returns the action that the driver reports at that time, or false when it cannot report one.
func (c *gpuState) recovery(now time.Time) (nvml.DeviceGpuRecoveryAction, bool) {
	switch at := slices.Index(RecoveryActions(), c.Recovery); {
	case c.Recovery == RecoveryUnsupported:
		return 0, false
	case at >= 0 && now.Before(c.RecoveryFrom):
		return nvml.GPU_RECOVERY_ACTION_NONE, true
	case at >= 0:
		return nvml.DeviceGpuRecoveryAction(at), true
	}
	return c.damage(), true
}

// damage returns the strongest action that the state of the hardware requires. A GPU with a pending row remap works,
// and a reset after draining repairs it. An XID alone does not make the driver report an action.
func (c *gpuState) damage() nvml.DeviceGpuRecoveryAction {
	switch {
	case c.Lost:
		return nvml.GPU_RECOVERY_ACTION_NODE_REBOOT
	case c.DoubleBitECC > 0 || c.ECCSRAM > 0 || c.RowRemap == RowRemapFailed || len(c.LinksDown) > 0:
		return nvml.GPU_RECOVERY_ACTION_GPU_RESET
	case c.RowRemap == RowRemapPending:
		return nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET
	}
	return nvml.GPU_RECOVERY_ACTION_NONE
}

// ofMachine reports whether the fault concerns the machine rather than a GPU.
func (f *Fault) ofMachine() bool {
	return f.DriverGone || f.GPU == "" && (f.Transient.Call != "" || f.CUDA != "")
}

// libraryCalls lists the calls of the library that open a GPU.
func libraryCalls() []string {
	return []string{"DeviceGetHandleByIndex", "DeviceGetHandleByPciBusId", "DeviceGetHandleBySerial", "DeviceGetHandleByUUID"}
}

// check returns an error for a fault that the hardware cannot have.
func (f *Fault) check(hw *hardware, slot int) error {
	if err := errors.Join(f.Transient.check(f.GPU == ""), checkCUDA(f.CUDA, f.GPU != "")); err != nil || f.ofMachine() {
		return err
	}
	c := &hw.GPUs[slot]
	if f.RowRemap != "" && f.RowRemap != RowRemapPending && f.RowRemap != RowRemapFailed {
		return fmt.Errorf("row remap %q: want %s or %s", f.RowRemap, RowRemapPending, RowRemapFailed)
	}
	if f.RowRemap != "" && !c.Model.RowRemapper {
		return fmt.Errorf("row remap: a %s has no row remapper (Ampere and later have); use --ecc", c.Model.Name)
	}
	if f.Temperature < 0 || f.Temperature > maxTemperature {
		return fmt.Errorf("temperature %d: want degrees Celsius from 1 to %d", f.Temperature, maxTemperature)
	}
	if (f.AllNVLinksDown || len(f.NVLinksDown) > 0) && len(c.Links) == 0 {
		return fmt.Errorf("NVLink down: GPU %d (%s) has no NVLinks in this machine", slot, c.Model.Name)
	}
	for _, link := range f.NVLinksDown {
		if link < 0 || link >= len(c.Links) {
			return fmt.Errorf("NVLink %d: GPU %d (%s) has links 0 to %d", link, slot, c.Model.Name, len(c.Links)-1)
		}
	}
	if err := f.checkFacts(c, slot); err != nil {
		return err
	}
	if f.HangFor < 0 {
		return fmt.Errorf("hang for %s: want a positive duration, or none to hang until cleared", f.HangFor)
	}
	return checkCall(f.Hang)
}

// checkFacts checks the fields that depend on the GPU model.
func (f *Fault) checkFacts(c *gpuHardware, slot int) error {
	oneOf := func(what, value string, words ...string) error {
		if value == "" || slices.Contains(words, value) {
			return nil
		}
		return fmt.Errorf("%s %q: want one of %s", what, value, strings.Join(words, ", "))
	}
	switch {
	case f.RetiredPages && c.Model.RowRemapper:
		return fmt.Errorf("retired pages: GPU %d (%s) remaps rows instead; use --row-remap", slot, c.Model.Name)
	case f.Fabric != "" && !c.Fabric.Registered:
		return fmt.Errorf("fabric: GPU %d (%s) has no NVLink fabric in this machine", slot, c.Model.Name)
	case f.NVLinkErrors > 0 && len(c.Links) == 0:
		return fmt.Errorf("NVLink errors: GPU %d (%s) has no NVLinks in this machine", slot, c.Model.Name)
	case strings.ContainsAny(f.Log, "\n\r"):
		return errors.New("kernel log: want one line")
	case f.RecoveryAfter != 0 && f.Recovery == "":
		return errors.New("recovery action after a time: want the action too")
	case f.RecoveryAfter < 0:
		return fmt.Errorf("recovery action after %s: want a positive duration", f.RecoveryAfter)
	case f.LogOnly && f.XID == 0:
		return errors.New("kernel log only: want the XID too")
	}
	return errors.Join(
		oneOf("throttle", f.Throttle, ThrottleHW, ThrottleThermal, ThrottlePowerBrake),
		oneOf("fabric", f.Fabric, FabricNotStarted, FabricInProgress, FabricFailed),
		oneOf("recovery action", f.Recovery, append(RecoveryActions(), RecoveryUnsupported)...),
	)
}

func checkCall(call string) error {
	known := slices.Concat(deviceCalls(), libraryCalls(), instanceCalls(), []string{AllCalls})
	if call == "" || slices.Contains(known, call) {
		return nil
	}
	if near := spelling.Nearest(call, known); near != "" {
		return fmt.Errorf("hang %q: no such call of nvml.Device; did you mean %q?", call, near)
	}
	return fmt.Errorf("hang %q: want a call of nvml.Device such as GetTemperature, one of %s, or %s", call,
		strings.Join(libraryCalls(), ", "), AllCalls)
}

// apply changes the state and returns the events that the hardware reports.
func (f *Fault) apply(hw *hardware, st *state, at target, now time.Time) []event {
	if f.DriverGone {
		st.DriverGone = true
		for i := range st.GPUs { // no setting survives an unload of the driver
			st.GPUs[i].ComputeMode, st.GPUs[i].TimeSlice = 0, 0
		}
		return []event{{Type: eventInject, Note: "driver gone"}}
	}
	if f.ofMachine() {
		f.Transient.add(st, -1)
		st.CUDA = cmp.Or(f.CUDA, st.CUDA)
		return []event{{Type: eventInject, Note: f.String()}}
	}
	c, gpu := &st.GPUs[at.slot], &hw.GPUs[at.slot]
	events := []event{{Type: eventInject, GPU: gpu.UUID, Note: f.String()}}
	report := func(xid uint64) {
		if !slices.Contains(c.XIDs, xid) {
			c.XIDs = append(c.XIDs, xid)
		}
		kind := eventXID
		if f.LogOnly {
			kind = eventLogXID
		}
		events = append(events, event{Type: kind, GPU: gpu.UUID, XID: xid, GI: at.gi, CI: at.ci})
	}
	if f.Log != "" {
		events = append(events, event{Type: eventLog, GPU: gpu.UUID, Note: f.Log})
	}
	if f.XID != 0 {
		report(f.XID)
	}
	if f.XID == xidContained {
		c.ContainedECC++
	}
	if f.ECC > 0 {
		c.DoubleBitECC += f.ECC
		events = append(events, event{Type: eventDoubleBit, GPU: gpu.UUID})
		report(xidDoubleBitECC)
	}
	if f.ECCSRAM > 0 {
		c.ECCSRAM += f.ECCSRAM
		events = append(events, event{Type: eventDoubleBit, GPU: gpu.UUID})
		report(xidDoubleBitECC)
	}
	if f.Temperature > 0 {
		c.Temperature = f.Temperature
	}
	switch f.RowRemap {
	case RowRemapPending:
		c.RowRemap = f.RowRemap
		report(xidRowRemap)
	case RowRemapFailed:
		c.RowRemap = f.RowRemap
		report(xidRowRemapFailed)
	}
	if f.linksDown(hw, st, at.slot) {
		report(xidNVLink)
	}
	c.RetiredPages = c.RetiredPages || f.RetiredPages
	c.NVLinkErrors += f.NVLinkErrors
	c.Throttle = cmp.Or(f.Throttle, c.Throttle)
	c.Fabric = cmp.Or(f.Fabric, c.Fabric)
	c.CUDA = cmp.Or(f.CUDA, c.CUDA)
	if f.Recovery != "" {
		c.Recovery, c.RecoveryFrom = f.Recovery, now.Add(f.RecoveryAfter)
	}
	if f.Hang != "" {
		c.Hangs = append(slices.DeleteFunc(c.Hangs, func(h hang) bool { return h.Call == f.Hang }), hang{Call: f.Hang, For: f.HangFor})
	}
	f.Transient.add(st, at.slot)
	if f.Busy {
		c.occupy(at)
	}
	if f.Lost || f.LostSilently || f.OffBus {
		c.Lost = true
		c.OffBus = c.OffBus || f.OffBus
		if !f.LostSilently {
			report(xidOffBus)
		}
	}
	c.Removed = c.Removed || f.Remove
	return events
}

// occupy marks the GPU, or the MIG instance, as used by a process.
func (c *gpuState) occupy(at target) {
	if at.gi == nil {
		c.Busy = true
	} else if gi := c.instance(int(*at.gi)); gi != nil {
		gi.Busy = true
	}
}

// linksDown takes down the links and their other ends.
func (f *Fault) linksDown(hw *hardware, st *state, slot int) bool {
	down := f.NVLinksDown
	if f.AllNVLinksDown {
		down = nil
		for link := range hw.GPUs[slot].Links {
			down = append(down, link)
		}
	}
	add := func(slot, link int) {
		if c := &st.GPUs[slot]; !slices.Contains(c.LinksDown, link) {
			c.LinksDown = append(c.LinksDown, link)
			slices.Sort(c.LinksDown)
		}
	}
	for _, number := range down {
		add(slot, number)
		if link := hw.GPUs[slot].Links[number]; link.Peer >= 0 {
			add(link.Peer, link.PeerLink)
		}
	}
	return len(down) > 0
}

// String describes the fault for the event log.
func (f *Fault) String() string {
	var parts []string
	add := func(when bool, format string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(f.XID != 0 && !f.LogOnly, "XID %d", f.XID)
	add(f.XID != 0 && f.LogOnly, "XID %d in the kernel log only", f.XID)
	add(f.Log != "", "kernel log %q", f.Log)
	add(f.Lost, "lost")
	add(f.LostSilently, "lost without an event")
	add(f.OffBus, "off the bus")
	add(f.ECC > 0, "%d double-bit ECC errors", f.ECC)
	add(f.ECCSRAM > 0, "%d uncorrectable ECC errors in SRAM", f.ECCSRAM)
	add(f.Temperature > 0, "temperature %d", f.Temperature)
	add(f.RowRemap != "", "row remap %s", f.RowRemap)
	add(f.AllNVLinksDown, "all NVLinks down")
	add(len(f.NVLinksDown) > 0, "NVLinks down: %s", numberList(f.NVLinksDown))
	add(f.RetiredPages, "retired pages pending")
	add(f.Throttle != "", "throttle %s", f.Throttle)
	add(f.Fabric != "", "fabric %s", f.Fabric)
	add(f.NVLinkErrors > 0, "%d NVLink errors", f.NVLinkErrors)
	add(f.Recovery != "" && f.RecoveryAfter == 0, "recovery action %s", f.Recovery)
	add(f.Recovery != "" && f.RecoveryAfter != 0, "recovery action %s after %s", f.Recovery, f.RecoveryAfter)
	add(f.Hang != "" && f.HangFor <= 0, "%s hangs", f.Hang)
	add(f.Hang != "" && f.HangFor > 0, "%s takes %s", f.Hang, f.HangFor)
	add(f.Transient.Call != "", "%s", &f.Transient)
	add(f.CUDA != "", "libcuda %s", f.CUDA)
	add(f.Busy, "busy")
	add(f.Remove, "removed")
	add(f.DriverGone, "driver gone")
	return strings.Join(parts, ", ")
}

// target is what a fault affects: a GPU, or one of its MIG instances.
type target struct {
	slot int
	gi   *uint32
	ci   *uint32
}

// find resolves a GPU reference: a slot, a UUID, a PCI bus ID or a MIG UUID.
func find(hw *hardware, st *state, ref string) (target, error) {
	if slot, err := strconv.Atoi(ref); err == nil {
		if slot < 0 || slot >= len(hw.GPUs) {
			return target{}, fmt.Errorf("GPU %d: this machine (%s) has GPUs 0 to %d", slot, hw.Profile, len(hw.GPUs)-1)
		}
		return target{slot: slot}, nil
	}
	for slot := range hw.GPUs {
		gpu := &hw.GPUs[slot]
		if strings.EqualFold(ref, gpu.UUID) || strings.EqualFold(ref, gpu.PCI) || strings.EqualFold(ref, nvmlBusID(gpu.PCI)) {
			return target{slot: slot}, nil
		}
		for _, m := range migDevices(gpu, &st.GPUs[slot]) {
			if strings.EqualFold(ref, m.uuid) {
				gi, ci := uint32(m.gi.ID), uint32(m.ci.ID)
				return target{slot: slot, gi: &gi, ci: &ci}, nil
			}
		}
	}
	if ref == "" {
		return target{}, errors.New("no GPU named: give its number or UUID")
	}
	uuids := make([]string, len(hw.GPUs))
	for slot := range hw.GPUs {
		uuids[slot] = hw.GPUs[slot].UUID
	}
	hint := ""
	if near := spelling.Nearest(ref, uuids); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", near)
	}
	return target{}, fmt.Errorf("GPU %q: this machine has no such GPU%s (berth sim show lists them)", ref, hint)
}
