// Package profile holds the machines that can be simulated, as data: which GPUs on which
// PCI bus and NUMA node, and how NVLinks join them.
//
// It guarantees that every profile it returns has been checked (ordered PCI bus IDs,
// symmetric links, known models). It must not import anything of Berth but spelling: it is data.
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

// reserved are the files of data that are no profile.
func reserved() []string { return []string{"models"} }

// Machine is one profile.
type Machine struct {
	Name string `json:"-"`
	// Title says in one line what the machine is.
	Title string `json:"title"`
	// Product is what DMI says (/sys/class/dmi/id/product_name).
	Product string    `json:"product"`
	NUMA    []Node    `json:"numa"`
	GPUs    []GPU     `json:"gpus"`
	Switch  *NVSwitch `json:"nvswitch,omitempty"`
	// Mesh counts the NVLinks that join two GPUs directly.
	Mesh   [][]int `json:"mesh,omitempty"`
	Clique *Clique `json:"clique,omitempty"`
	// Extras are the drivers that the machine has beside the GPU's, by their names here.
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

// GPU is a card in its place. Path are the PCI bridges above it, from the root port down.
type GPU struct {
	Model string   `json:"model"`
	PCI   string   `json:"pci"`
	NUMA  int      `json:"numa"`
	Path  []string `json:"path"`
	// MemoryNUMA is the NUMA node that the card's own memory is, on machines where it is one.
	MemoryNUMA *int `json:"memoryNUMA,omitempty"`
}

// NVSwitch is a fabric: each GPU has Links[i] links to switch i. A fabric whose switches
// the host does not see on PCI has one entry in Links and none in PCI.
type NVSwitch struct {
	Device uint32        `json:"device,omitempty"`
	NUMA   int           `json:"numa,omitempty"`
	Links  []int         `json:"links"`
	PCI    []SwitchPlace `json:"pci,omitempty"`
}

// SwitchPlace is where an NVSwitch is on PCI.
type SwitchPlace struct {
	PCI  string   `json:"pci"`
	Path []string `json:"path"`
}

// Clique is the NVLink domain of several nodes that the GPUs belong to.
type Clique struct {
	ClusterUUID string `json:"clusterUUID"`
	ID          uint32 `json:"id"`
}

// Model is a product: units are MiB, W, degrees Celsius and MB/s.
type Model struct {
	Name              string `json:"name"`
	PCIDevice         uint32 `json:"pciDevice"`
	PCISubsystem      uint32 `json:"pciSubsystem"`
	Architecture      string `json:"architecture"`
	ComputeCapability string `json:"computeCapability"`
	Brand             string `json:"brand"`
	MemoryMiB         uint64 `json:"memoryMiB"`
	ReservedMiB       uint64 `json:"reservedMiB"`
	SMs               uint32 `json:"sms"`
	Cores             int    `json:"cores"`
	BusWidth          uint32 `json:"busWidth"`
	NVLinks           int    `json:"nvlinks,omitempty"`
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
	// MIG names the geometry; empty for a card that cannot be partitioned.
	MIG string `json:"mig,omitempty"`
	// RowRemapper is false on cards that retire pages instead (before Ampere).
	RowRemapper bool `json:"rowRemapper,omitempty"`
	// Fabric is true for cards that register with a fabric manager through NVML.
	Fabric bool `json:"fabric,omitempty"`
	// Coherent is true where CPU and GPU share an address space over NVLink-C2C.
	Coherent bool `json:"coherent,omitempty"`
}

// Names are the profiles, sorted.
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

// Load reads and checks a profile. For an unknown name the error lists the known ones and the nearest.
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

// Models are the products by the names that profiles use.
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
