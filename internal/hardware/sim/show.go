package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Description is what Show returns about a machine: a versioned object.
type Description struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Dir        string `json:"dir"`
	Profile    string `json:"profile"`
	Title      string `json:"title"`
	// Driver and CUDA are versions; DriverLoaded is false while a fault has the driver unloaded.
	Driver       string `json:"driver"`
	CUDA         string `json:"cuda"`
	DriverLoaded bool   `json:"driverLoaded"`
	// CUDAFault is the fault of libcuda.so.1 for the machine as a whole.
	CUDAFault string `json:"cudaFault,omitempty"`
	// DeviceNodes is true if the tree has device nodes; NoDeviceNodes says why it has none.
	DeviceNodes   bool             `json:"deviceNodes"`
	NoDeviceNodes string           `json:"noDeviceNodes,omitempty"`
	Majors        MajorNumbers     `json:"majors"`
	GPUs          []GPUDescription `json:"gpus"`
	// Topology is the matrix of nvidia-smi topo -m: one row and column per element of GPUs, including removed ones.
	Topology [][]string `json:"topology"`
	// MPSAnswers is how MPS control daemons answer; see the function MPSAnswers.
	MPSAnswers string `json:"mpsAnswers,omitempty"`
	// Events is the number of events so far.
	Events uint64 `json:"events"`
}

// MajorNumbers are the device numbers of the nodes.
type MajorNumbers struct {
	NVIDIA     uint32 `json:"nvidia"`
	NVIDIAUVM  uint32 `json:"nvidiaUVM"`
	NVIDIACaps uint32 `json:"nvidiaCaps"`
	DRM        uint32 `json:"drm"`
}

// GPUDescription is one GPU. Slot is its number for Inject and Clear. Index is NVML's, or -1 for a removed GPU.
type GPUDescription struct {
	Slot      int    `json:"slot"`
	Index     int    `json:"index"`
	UUID      string `json:"uuid"`
	Product   string `json:"product"`
	PCIBusID  string `json:"pciBusID"`
	Minor     int    `json:"minor"`
	NUMANode  int    `json:"numaNode"`
	MemoryMiB uint64 `json:"memoryMiB"`
	NVLinks   int    `json:"nvlinks"`
	// Clique is "clusterUUID.id" on a multi-node fabric.
	Clique string `json:"clique,omitempty"`
	MIG    string `json:"mig"`
	// MIGAfterReset is the pending MIG mode, which the next reset applies.
	MIGAfterReset string `json:"migAfterReset,omitempty"`
	// ComputeMode and TimeSlice are nvidia-smi's names; empty means the default.
	ComputeMode string   `json:"computeMode,omitempty"`
	TimeSlice   string   `json:"timeSlice,omitempty"`
	Faults      []string `json:"faults,omitempty"`
	// Recovery is the value of NVML's field 230.
	Recovery   string           `json:"recovery"`
	MIGDevices []MIGDescription `json:"migDevices,omitempty"`
	// EmptyInstances is the number of GPU instances without a compute instance, which are no MIG device.
	EmptyInstances int `json:"emptyInstances,omitempty"`
}

// MIGDescription is one MIG device.
type MIGDescription struct {
	UUID    string `json:"uuid"`
	Profile string `json:"profile"`
	GI      int    `json:"gi"`
	CI      int    `json:"ci"`
	// Start and Size are the placement of the GPU instance in memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
}

// The kind and version of Description.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "SimulatedMachine"
)

// Show describes the machine in its current state.
func (m *Machine) Show() (Description, error) {
	v, err := m.view()
	if err != nil {
		return Description{}, err
	}
	d := Description{
		APIVersion: APIVersion, Kind: Kind, Dir: m.Dir(), Profile: v.hw.Profile, Title: v.hw.Title,
		Driver: v.hw.Driver, CUDA: fmt.Sprintf("%d.%d", v.hw.CUDA/1000, v.hw.CUDA%1000/10), DriverLoaded: !v.st.DriverGone, CUDAFault: v.st.CUDA,
		DeviceNodes: v.hw.NodesError == "", NoDeviceNodes: v.hw.NodesError,
		Majors:   MajorNumbers{NVIDIA: v.hw.Majors.NVIDIA, NVIDIAUVM: v.hw.Majors.UVM, NVIDIACaps: v.hw.Majors.Caps, DRM: v.hw.Majors.DRM},
		Topology: v.letters(), Events: v.st.Seq, MPSAnswers: v.st.MPSAnswers,
	}
	for slot := range v.hw.GPUs {
		d.GPUs = append(d.GPUs, v.describe(slot))
	}
	return d, nil
}

func (v *view) at(slot int) snapshot {
	return snapshot{view: v, gpu: &v.hw.GPUs[slot], state: &v.st.GPUs[slot]}
}

func (v *view) describe(slot int) GPUDescription {
	c := v.at(slot)
	out := GPUDescription{
		Slot: slot, Index: -1, UUID: c.gpu.UUID, Product: c.gpu.Model.Name, PCIBusID: c.gpu.PCI, Minor: c.gpu.Minor,
		NUMANode: c.gpu.NUMA, MemoryMiB: c.gpu.Model.MemoryMiB, MIG: "n/a", Faults: c.state.faults(),
		Recovery: recoveryName(c.state.recovery(time.Now())),
	}
	for index, present := range v.order {
		if present == slot {
			out.Index = index
		}
	}
	for number := range c.gpu.Links {
		if c.up(number) {
			out.NVLinks++
		}
	}
	if f := c.gpu.Fabric; f.ClusterUUID != "" {
		out.Clique = f.ClusterUUID + "." + strconv.FormatUint(uint64(f.Clique), 10)
	}
	mode := map[bool]string{false: "off", true: "on"}
	if c.gpu.Geometry != nil {
		out.MIG = mode[c.state.MIGEnabled]
	}
	if c.state.MIGPending {
		out.MIGAfterReset = mode[!c.state.MIGEnabled]
	}
	if c.state.ComputeMode != 0 {
		out.ComputeMode = computeModeName(nvml.ComputeMode(c.state.ComputeMode))
	}
	if c.state.TimeSlice != 0 {
		out.TimeSlice = TimeSlices()[c.state.TimeSlice]
	}
	for _, m := range migDevices(c.gpu, c.state) {
		out.MIGDevices = append(out.MIGDevices, MIGDescription{UUID: m.uuid, Profile: m.name(), GI: m.gi.ID,
			CI: m.ci.ID, Start: m.gi.Start, Size: m.gi.Size})
	}
	for _, instance := range c.state.Instances {
		if len(instance.Compute) == 0 {
			out.EmptyInstances++
		}
	}
	return out
}

// faults lists the faults of the GPU in a fixed order.
func (c *gpuState) faults() []string {
	var out []string
	add := func(when bool, format string, args ...any) {
		if when {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(c.Removed, "removed")
	add(c.Busy, "busy")
	for _, gi := range c.Instances {
		add(gi.Busy, "GI %d busy", gi.ID)
	}
	add(c.OffBus, "off the bus")
	add(c.Lost && !c.OffBus, "lost")
	for _, xid := range c.XIDs {
		add(true, "XID %d", xid)
	}
	add(c.DoubleBitECC > 0, "%d double-bit ECC", c.DoubleBitECC)
	add(c.ContainedECC > 0, "%d contained ECC", c.ContainedECC)
	add(c.ECCSRAM > 0, "%d SRAM ECC", c.ECCSRAM)
	add(c.RowRemap != "", "row remap %s", c.RowRemap)
	add(c.Temperature > 0, "%d C", c.Temperature)
	add(c.RetiredPages, "retired pages pending")
	add(c.Throttle != "", "throttled: %s", c.Throttle)
	add(c.Fabric != "", "fabric %s", c.Fabric)
	add(c.NVLinkErrors > 0, "%d NVLink errors", c.NVLinkErrors)
	add(len(c.LinksDown) > 0, "NVLinks down: %s", numberList(c.LinksDown))
	for _, h := range c.Hangs {
		add(h.For == 0, "%s hangs", h.Call)
		add(h.For > 0, "%s takes %s", h.Call, h.For)
	}
	add(c.CUDA != "", "libcuda %s", c.CUDA)
	for i := range c.Transients {
		add(true, "%s", c.Transients[i].described())
	}
	return out
}

func recoveryName(action nvml.DeviceGpuRecoveryAction, supported bool) string {
	names := []string{"None", "GPUReset", "NodeReboot", "DrainP2P", "DrainAndReset", "RecoverIMEXDomain", "BusReset", "SystemReboot"}
	if !supported {
		return "Unsupported"
	}
	return names[action]
}

// letters returns the matrix of nvidia-smi topo -m.
func (v *view) letters() [][]string {
	rows := make([][]string, len(v.hw.GPUs))
	for i := range rows {
		rows[i] = make([]string, len(rows))
		for j := range rows {
			rows[i][j] = v.letter(i, j)
		}
	}
	return rows
}

func (v *view) letter(i, j int) string {
	if i == j {
		return "X"
	}
	if n := linksBetween(v.at(i), v.at(j)); n > 0 {
		return "NV" + strconv.Itoa(n)
	}
	switch ancestor(&v.hw.GPUs[i], &v.hw.GPUs[j]) {
	case nvml.TOPOLOGY_SINGLE:
		return "PIX"
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB"
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case nvml.TOPOLOGY_NODE:
		return "NODE"
	}
	return "SYS"
}
