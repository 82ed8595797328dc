// Package profile contains the machines that can be simulated, as data: which GPUs are on which PCI bus and NUMA node,
// and how NVLinks connect them.
//
// It guarantees that every profile it returns has been checked (sorted PCI bus IDs, symmetric links, known models). It
// contains data only, and must not import any package of Berth but spelling.
package profile

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

//go:embed data
var files embed.FS

// reserved lists the data files that are not profiles.
func reserved() []string { return []string{"models"} }

// Machine is one profile.
type Machine struct {
	Name string `json:"-"`
	// Title describes the machine in one line.
	Title string `json:"title"`
	// Product is the DMI product name (/sys/class/dmi/id/product_name).
	Product string    `json:"product"`
	NUMA    []Node    `json:"numa"`
	GPUs    []GPU     `json:"gpus"`
	Switch  *NVSwitch `json:"nvswitch,omitempty"`
	// Mesh counts the NVLinks that connect two GPUs directly.
	Mesh   [][]int `json:"mesh,omitempty"`
	Clique *Clique `json:"clique,omitempty"`
	// Extras are the drivers that the machine has besides the GPU driver.
	Extras []string `json:"extras,omitempty"`
}

// The values of Machine.Extras.
const (
	GDRCopy = "gdrcopy"
	GDS     = "gds"
	MOFED   = "mofed"
	IMEX    = "imex"
)

// Node is a NUMA node; CPUs is a kernel CPU list.
type Node struct {
	ID        int    `json:"id"`
	CPUs      string `json:"cpus"`
	MemoryGiB int    `json:"memoryGiB"`
}

// GPU is a GPU with its location. Path lists the PCI bridges above it, from the root port down.
type GPU struct {
	Model string   `json:"model"`
	PCI   string   `json:"pci"`
	NUMA  int      `json:"numa"`
	Path  []string `json:"path"`
	// MemoryNUMA is the NUMA node that consists of the GPU's own memory, on machines that have one.
	MemoryNUMA *int `json:"memoryNUMA,omitempty"`
}

// NVSwitch is a fabric: each GPU has Links[i] links to switch i. A fabric whose switches are not visible on the host's
// PCI bus has one element in Links and none in PCI.
type NVSwitch struct {
	Device uint32        `json:"device,omitempty"`
	NUMA   int           `json:"numa,omitempty"`
	Links  []int         `json:"links"`
	PCI    []SwitchPlace `json:"pci,omitempty"`
}

// SwitchPlace is the PCI location of an NVSwitch.
type SwitchPlace struct {
	PCI  string   `json:"pci"`
	Path []string `json:"path"`
}

// Clique is the multi-node NVLink domain of the GPUs.
type Clique struct {
	ClusterUUID string `json:"clusterUUID"`
	ID          uint32 `json:"id"`
}

// Model is a product. Units are MiB, W, degrees Celsius and MB/s.
type Model struct {
	Name              string `json:"name"`
	PCIDevice         uint32 `json:"pciDevice"`
	PCISubsystem      uint32 `json:"pciSubsystem"`
	Architecture      string `json:"architecture"`
	ComputeCapability string `json:"computeCapability"`
	Brand             string `json:"brand"`
	MemoryMiB         uint64 `json:"memoryMiB"`
	ReservedMiB       uint64 `json:"reservedMiB"`
	// HostMemory is true for a GPU that uses the host's memory, of which NVML says nothing.
	HostMemory bool   `json:"hostMemory,omitempty"`
	SMs        uint32 `json:"sms"`
	Cores      int    `json:"cores"`
	BusWidth   uint32 `json:"busWidth"`
	NVLinks    int    `json:"nvlinks,omitempty"`
	// NVLinkVersion is NVML's number for the version (nvmlNvlinkVersion), not the version itself.
	NVLinkVersion   uint32 `json:"nvlinkVersion,omitempty"`
	NVLinkMBps      uint32 `json:"nvlinkMBps,omitempty"`
	PCIeGeneration  int    `json:"pcieGeneration"`
	PowerLimit      uint32 `json:"powerLimit"`
	IdlePower       uint32 `json:"idlePower"`
	IdleTemperature uint32 `json:"idleTemperature"`
	Slowdown        uint32 `json:"slowdown"`
	Shutdown        uint32 `json:"shutdown"`
	MaxTemperature  uint32 `json:"maxTemperature"`
	VBIOS           string `json:"vbios"`
	// MIG is the name of the geometry; empty for a GPU that cannot be partitioned.
	MIG string `json:"mig,omitempty"`
	// RowRemapper is false for GPUs that retire pages instead (before Ampere).
	RowRemapper bool `json:"rowRemapper,omitempty"`
	// Fabric is true for GPUs that register with a fabric manager through NVML.
	Fabric bool `json:"fabric,omitempty"`
	// Coherent is true where CPU and GPU share an address space over NVLink-C2C.
	Coherent bool `json:"coherent,omitempty"`
}

// Names returns the names of the profiles, sorted.
func Names() []string {
	found, _ := fs.Glob(files, "data/*.yaml") // the pattern is constant and well formed
	names := make([]string, 0, len(found))
	for _, file := range found {
		name := strings.TrimSuffix(path.Base(file), ".yaml")
		if !slices.Contains(reserved(), name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Load reads and checks a profile. For an unknown name, the error lists the known names and suggests the nearest.
func Load(name string) (*Machine, error) {
	names := Names()
	if !slices.Contains(names, name) {
		hint := ""
		if near := spelling.Nearest(name, names); near != "" {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		return nil, fmt.Errorf("unknown profile %q%s Profiles: %s", name, cmp.Or(hint, "."), strings.Join(names, ", "))
	}
	machine := &Machine{Name: name}
	if err := read("data/"+name+".yaml", machine); err != nil {
		return nil, err
	}
	models, err := Models()
	if err != nil {
		return nil, err
	}
	if err := machine.check(models); err != nil {
		return nil, fmt.Errorf("check profile %s: %w", name, err)
	}
	return machine, nil
}

// Models returns the products by the names that profiles use.
func Models() (map[string]Model, error) {
	models := map[string]Model{}
	return models, read("data/models.yaml", &models)
}

func read(file string, into any) error {
	content, err := files.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	return nil
}
