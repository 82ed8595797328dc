package gpu

import (
	"slices"
	"strings"
)

// NoNUMANode is the NUMA node of a GPU for which the kernel reports none (numa_node is -1, or missing).
const NoNUMANode = -1

// GPU is one physical GPU as the last scan saw it.
type GPU struct {
	UUID UUID `json:"uuid"`
	// Vendor is the Traits.Name of the vendor whose driver the GPU has.
	Vendor string `json:"vendor,omitempty"`
	// Driver is the driver of this GPU; zero while none answers.
	Driver Driver `json:"driver,omitzero"`
	// Index is the position in NVML's enumeration, which is by PCI bus ID. It changes when a GPU is lost; the UUID does not.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN (nvmlDeviceGetMinorNumber).
	Minor int        `json:"minor"`
	PCI   PCIAddress `json:"pciBusID"`
	// DeviceID is the PCI device and vendor ID, 0xDDDDVVVV (0x20B010DE is an A100).
	DeviceID uint32 `json:"deviceID,omitempty"`
	// SubsystemID is that of the board, 0xSSSSVVVV.
	SubsystemID       uint32  `json:"subsystemID,omitempty"`
	Product           string  `json:"product"`
	Architecture      string  `json:"architecture"`
	ComputeCapability Version `json:"computeCapability"`
	MemoryBytes       uint64  `json:"memoryBytes"`
	// NUMANode is the node of the GPU's PCI device, or NoNUMANode.
	NUMANode int `json:"numaNode"`
	// PCIeRoot is the PCIe root complex of the GPU as sysfs names it, such as "pci0000:16"; empty where sysfs does not show it.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	// Clique is the NVLink domain (NVL72) that the GPU has joined; zero for none.
	Clique Clique `json:"clique,omitzero"`
	MIG    MIG    `json:"mig"`
	// Nodes are the device nodes that open this GPU and nothing else: /dev/nvidiaN first, then its DRM nodes.
	Nodes  []DeviceNode `json:"nodes,omitempty"`
	Health Health       `json:"health"`
	// Life is what a scan read. It changes with each scan, so a published snapshot does not have it.
	Life Life `json:"-"`
}

// Clique is a set of GPUs of several nodes on one NVLink fabric (nvmlDeviceGetGpuFabricInfo).
type Clique struct {
	ClusterUUID string `json:"clusterUUID,omitempty"`
	ID          uint32 `json:"id,omitempty"`
}

// MIG is whether the GPU can be partitioned, whether it is, and its partitions.
type MIG struct {
	Capable bool `json:"capable,omitempty"`
	Enabled bool `json:"enabled,omitempty"`
	// Unsure is true when the last scan could not read all of this: it is then the result of an earlier scan, or empty. No change
	// may be planned with it.
	Unsure bool `json:"unsure,omitempty"`
	// Unknown is true when no scan could read whether the GPU is partitioned: neither the GPU nor its partitions are advertised.
	Unknown bool `json:"unknown,omitempty"`
	// PendingEnabled is the mode after the next GPU reset.
	PendingEnabled bool `json:"pendingEnabled,omitempty"`
	// ModeNeedsReset is true where a change of the mode takes a GPU reset and then persists (Ampere). Later GPUs switch at once and
	// lose the mode at a reboot.
	ModeNeedsReset bool        `json:"modeNeedsReset,omitempty"`
	Devices        []MIGDevice `json:"devices,omitempty"`
	// Empty are GPU instances without a compute instance: half made, or half removed.
	Empty []GPUInstance `json:"empty,omitempty"`
	// Geometry is what the GPU can be partitioned into; zero when it is not capable of MIG.
	Geometry MIGGeometry `json:"geometry,omitzero"`
}

// GPUInstance is a partition of a GPU's memory slices.
type GPUInstance struct {
	GI int `json:"gi"`
	// Profile is the name that NVIDIA's tools print, such as "1g.10gb+me".
	Profile string `json:"profile"`
	// Start and Size are the placement in memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
}

// MIGGeometry is the shape of a GPU in slices, as the driver reports it at run time.
type MIGGeometry struct {
	// MemorySlices and ComputeSlices are what the whole GPU has (8 and 7 on an A100).
	MemorySlices  int `json:"memorySlices,omitempty"`
	ComputeSlices int `json:"computeSlices,omitempty"`
	// Profiles are in the order of NVML's profile numbers.
	Profiles []MIGProfile `json:"profiles,omitempty"`
}

// MIGProfile is one shape of GPU instance (nvmlDeviceGetGpuInstanceProfileInfo,
// nvmlDeviceGetGpuInstancePossiblePlacements).
type MIGProfile struct {
	// Name is what NVIDIA's tools print, such as "1g.10gb+me".
	Name string `json:"name"`
	// Number is NVML_GPU_INSTANCE_PROFILE_*, ID the number of nvidia-smi mig -lgip.
	Number int    `json:"number"`
	ID     uint32 `json:"id"`
	// ComputeSlices is what an instance takes of the GPU's compute slices.
	ComputeSlices int `json:"computeSlices"`
	// Size is what it takes of the memory slices, Starts where it may begin, ascending.
	Size   int   `json:"size"`
	Starts []int `json:"starts"`
	// Max is how many instances of the profile a GPU can have at one time.
	Max         int    `json:"max"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// Attributes are the resources of an instance; zero where the driver does not report them.
	Attributes MIGAttributes `json:"attributes,omitzero"`
}

// Profile finds a profile by name; nil when the GPU has none of that name.
func (g *MIGGeometry) Profile(name string) *MIGProfile {
	for i := range g.Profiles {
		if g.Profiles[i].Name == name {
			return &g.Profiles[i]
		}
	}
	return nil
}

// Partition is what the parts of GPUs of all vendors have in common: a part that is allocated by itself.
type Partition struct {
	UUID UUID `json:"uuid"`
	// Profile is the name that the vendor's tools print for the shape, such as "1g.10gb+me".
	Profile string `json:"profile"`
	// Index counts the partitions of a GPU from 0 (M of the MIG device index N:M).
	Index       int    `json:"index"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// Nodes are the device nodes that open this partition, apart from the GPU's (for a MIG device its two nvidia-caps nodes:
	// GPU instance, compute instance).
	Nodes []DeviceNode `json:"nodes,omitempty"`
	// Health is the verdict on this partition; a fault of the whole GPU is in it too.
	Health Health `json:"health,omitzero"`
}

// MIGDevice is a GPU instance with its compute instance.
type MIGDevice struct {
	Partition
	GI int `json:"gi"`
	CI int `json:"ci"`
	// Start and Size are the GPU instance's placement in memory slices; a Size of 0 means that the driver does not report it.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Attributes are the resources of the device; zero where the driver does not report them.
	Attributes MIGAttributes `json:"attributes,omitzero"`
}

// MIGAttributes count what a MIG device, or an instance of a profile, has. Compute instances of one GPU instance share its engines.
type MIGAttributes struct {
	Multiprocessors int `json:"multiprocessors"`
	CopyEngines     int `json:"copyEngines"`
	Decoders        int `json:"decoders"`
	Encoders        int `json:"encoders"`
	JPEGs           int `json:"jpegs"`
	OFAs            int `json:"ofas"`
}

// DeviceNode is a character device.
type DeviceNode struct {
	// Path is where a container expects it, such as /dev/nvidia0.
	Path string `json:"path"`
	// HostPath is its path on this host, including the device root.
	HostPath string `json:"hostPath,omitempty"`
	Major    uint32 `json:"major"`
	Minor    uint32 `json:"minor"`
}

// DRM reports whether the node belongs to the kernel's graphics subsystem: the GPU computes without it.
func (n DeviceNode) DRM() bool { return strings.HasPrefix(n.Path, DRMPrefix) }

// Driver is the version of a driver. The zero value means that there is none.
type Driver struct {
	Version string  `json:"version,omitempty"`
	CUDA    Version `json:"cuda,omitzero"`
}

// Present reports whether a driver answered.
func (d Driver) Present() bool { return d.Version != "" }

// VendorState is what a scan found of one vendor, its GPUs left out.
type VendorState struct {
	// Name is the vendor's Traits.Name.
	Name   string `json:"name"`
	Driver Driver `json:"driver,omitzero"`
	// Shared are the device nodes that every container with a GPU of the vendor needs, those that the host has. GPU.Nodes
	// are a GPU's own.
	Shared []DeviceNode `json:"shared,omitempty"`
	// Scanned is true once a scan of the vendor has returned.
	Scanned bool `json:"scanned,omitempty"`
}

// Snapshot is everything that one scan found on a node. It is immutable once published; readers share it.
type Snapshot struct {
	// Vendors are sorted by name.
	Vendors []VendorState `json:"vendors,omitempty"`
	// GPUs are sorted by the vendor's name, then by Index.
	GPUs []GPU `json:"gpus"`
	// Topology has one row per entry of GPUs, in the same order.
	Topology Topology `json:"topology,omitempty"`
	// Faults belong to no known GPU: no driver, a GPU that could not be read.
	Faults []Cause `json:"faults,omitempty"`
}

// Vendor returns the state of a vendor by name; one without a driver when the snapshot does not have it.
func (s *Snapshot) Vendor(name string) *VendorState {
	for i := range s.Vendors {
		if s.Vendors[i].Name == name {
			return &s.Vendors[i]
		}
	}
	return &VendorState{Name: name}
}

// Of returns the part of a snapshot that is about one vendor: its state, its GPUs and their links, and all faults. It is the
// snapshot itself when all GPUs are that vendor's.
func (s *Snapshot) Of(name string) *Snapshot {
	first := slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.Vendor == name })
	count := 0
	for i := range s.GPUs {
		if s.GPUs[i].Vendor == name {
			count++
		}
	}
	if count == len(s.GPUs) && !slices.ContainsFunc(s.Vendors, func(v VendorState) bool { return v.Name != name }) {
		return s
	}
	out := &Snapshot{Vendors: []VendorState{*s.Vendor(name)}, Faults: s.Faults}
	if count == 0 {
		return out
	}
	out.GPUs = s.GPUs[first : first+count] // they are sorted by the vendor's name
	for _, row := range s.Topology[min(first, len(s.Topology)):min(first+count, len(s.Topology))] {
		out.Topology = append(out.Topology, row[first:first+count])
	}
	return out
}

// SeveralVendors reports whether the GPUs of more than one vendor are looked for, so that an index alone is ambiguous.
func (s *Snapshot) SeveralVendors() bool { return len(s.Vendors) > 1 }

// DriverPresent reports whether the driver of at least one vendor answered.
func (s *Snapshot) DriverPresent() bool {
	return slices.ContainsFunc(s.Vendors, func(v VendorState) bool { return v.Driver.Present() })
}

// GPU finds a GPU by UUID; nil when the snapshot does not have it.
func (s *Snapshot) GPU(id UUID) *GPU {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == id {
			return &s.GPUs[i]
		}
	}
	return nil
}

// Device finds the GPU and, for a MIG UUID, the MIG device that id names.
func (s *Snapshot) Device(id UUID) (*GPU, *MIGDevice) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == id {
			return g, nil
		}
		for j := range g.MIG.Devices {
			if g.MIG.Devices[j].UUID == id {
				return g, &g.MIG.Devices[j]
			}
		}
	}
	return nil, nil
}
