package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// The newest driver, the default. The names of its libraries contain its version.
const (
	driverVersion = "580.95.05"
	cudaVersion   = 13000 // in the format of cuDriverGetVersion: 1000*major + 10*minor
)

// hardwareVersion is the version of the format of hardware.json.
const hardwareVersion = 1

// hardware is the part of a machine that never changes. Create writes it in full, so that a later version of Berth with
// other profiles opens the same machine.
type hardware struct {
	Version  int            `json:"version"`
	Profile  string         `json:"profile"`
	Title    string         `json:"title"`
	Product  string         `json:"product"`
	Seed     string         `json:"seed"`
	Driver   string         `json:"driver"`
	NVML     string         `json:"nvml"`
	CUDA     int            `json:"cuda"`
	Majors   majors         `json:"majors"`
	NUMA     []profile.Node `json:"numa"`
	GPUs     []gpuHardware  `json:"gpus"`
	Switches []pciSwitch    `json:"switches,omitempty"`
	// Extras are the drivers besides the GPU driver (profile.Machine).
	Extras []string `json:"extras,omitempty"`
	// MIGProfilesInMIGMode is as in Options.
	MIGProfilesInMIGMode bool `json:"migProfilesInMIGMode,omitempty"`
	// Without, FieldsBelow, Files and Computes are as in release.
	Without     []string `json:"without,omitempty"`
	FieldsBelow uint32   `json:"fieldsBelow,omitempty"`
	Files       string   `json:"files,omitempty"`
	Computes    bool     `json:"computes,omitempty"`
	// NodesError says why the tree has no device nodes; empty when it has them.
	NodesError string `json:"nodesError,omitempty"`
}

// gpuHardware is one GPU. Its index in hardware.GPUs is its slot, which never changes.
type gpuHardware struct {
	UUID     string        `json:"uuid"`
	Serial   string        `json:"serial"`
	Minor    int           `json:"minor"`
	PCI      string        `json:"pci"`
	Path     []string      `json:"path"`
	NUMA     int           `json:"numa"`
	CPUs     string        `json:"cpus"`
	Model    profile.Model `json:"model"`
	Links    []nvlink      `json:"links,omitempty"`
	Fabric   fabric        `json:"fabric,omitzero"`
	Card     int           `json:"drmCard"`
	Render   int           `json:"drmRender"`
	Geometry *geometry     `json:"geometry,omitempty"`
	// MemoryNUMA is the NUMA node that consists of the GPU's memory, or -1.
	MemoryNUMA int `json:"memoryNUMA"`
}

// geometry describes how the GPU can be partitioned (MIG).
type geometry = profile.Geometry

// nvlink is one link of a GPU. Peer is the slot at the other end, or -1 for an NVSwitch.
type nvlink struct {
	Peer     int    `json:"peer"`
	PeerLink int    `json:"peerLink,omitempty"`
	Remote   string `json:"remote"`
	Device   uint32 `json:"device,omitempty"`
}

// fabric is the content of nvmlDeviceGetGpuFabricInfo. A single-node machine is registered with a fabric manager but
// has no cluster UUID.
type fabric struct {
	Registered  bool   `json:"registered,omitempty"`
	ClusterUUID string `json:"clusterUUID,omitempty"`
	Clique      uint32 `json:"clique,omitempty"`
}

// pciSwitch is an NVSwitch that is visible on the host's PCI bus.
type pciSwitch struct {
	PCI    string   `json:"pci"`
	Path   []string `json:"path"`
	NUMA   int      `json:"numa"`
	Device uint32   `json:"device"`
}

// hiddenSwitch is the remote PCI bus ID of a link to an NVSwitch that is not visible on the host's PCI bus.
const hiddenSwitch = "0000:00:00.0"

// build derives the hardware from a profile, and UUIDs and serial numbers from the seed.
func build(machine *profile.Machine, seed string, devices majors) (*hardware, error) {
	models, err := profile.Models()
	if err != nil {
		return nil, err
	}
	hw := &hardware{
		Version: hardwareVersion, Profile: machine.Name, Title: machine.Title, Product: machine.Product, Seed: seed,
		Majors: devices, NUMA: machine.NUMA, Extras: machine.Extras,
	}
	hw.setRelease(releases()[0])
	hw.Majors.keep(hw.Extras)
	for slot, place := range machine.GPUs {
		model := models[place.Model]
		one := gpuHardware{
			UUID: "GPU-" + uuidOf(seed, machine.Name, "gpu", fmt.Sprint(slot)), Serial: serialOf(seed, machine.Name, slot),
			Minor: slot, PCI: place.PCI, Path: place.Path, NUMA: place.NUMA, CPUs: cpusOf(machine, place.NUMA), Model: model,
			// The first DRM device of a server is its management controller.
			Card: slot + 1, Render: 128 + slot, MemoryNUMA: -1,
		}
		if place.MemoryNUMA != nil {
			one.MemoryNUMA = *place.MemoryNUMA
		}
		if model.Fabric {
			one.Fabric = fabric{Registered: true}
			if machine.Clique != nil {
				one.Fabric.ClusterUUID, one.Fabric.Clique = machine.Clique.ClusterUUID, machine.Clique.ID
			}
		}
		if model.MIG != "" {
			if one.Geometry, err = profile.LoadGeometry(model.MIG); err != nil {
				return nil, err
			}
		}
		hw.GPUs = append(hw.GPUs, one)
	}
	linkSwitches(hw, machine.Switch)
	linkMesh(hw, machine.Mesh)
	return hw, nil
}

// join makes the GPUs of a machine those of a clique, CLUSTER-UUID.CLIQUE-ID; an empty text changes nothing.
func join(machine *profile.Machine, text string) error {
	if text == "" {
		return nil
	}
	cluster, number, _ := strings.Cut(text, ".")
	id, err := strconv.ParseUint(number, 10, 32)
	if raw, bad := hex.DecodeString(strings.ReplaceAll(cluster, "-", "")); err != nil || bad != nil || len(raw) != 16 {
		return fmt.Errorf("clique %q is not of the form CLUSTER-UUID.CLIQUE-ID, as 7f3c1ab2-5d6e-4c91-9a44-3b0e6f2d8c57.1", text)
	}
	models, err := profile.Models()
	if err != nil {
		return err
	}
	for _, place := range machine.GPUs {
		if !models[place.Model].Fabric {
			return fmt.Errorf("clique %s: the %s of %s joins no NVLink fabric", text, models[place.Model].Name, machine.Name)
		}
	}
	machine.Clique = &profile.Clique{ClusterUUID: cluster, ID: uint32(id)}
	return nil
}

func cpusOf(machine *profile.Machine, node int) string {
	for _, n := range machine.NUMA {
		if n.ID == node {
			return n.CPUs
		}
	}
	return ""
}

func linkSwitches(hw *hardware, spec *profile.NVSwitch) {
	if spec == nil {
		return
	}
	for _, place := range spec.PCI {
		hw.Switches = append(hw.Switches, pciSwitch{PCI: place.PCI, Path: place.Path, NUMA: spec.NUMA, Device: spec.Device})
	}
	for slot := range hw.GPUs {
		for i, count := range spec.Links {
			remote := hiddenSwitch
			if len(spec.PCI) > 0 {
				remote = spec.PCI[i].PCI
			}
			for range count {
				hw.GPUs[slot].Links = append(hw.GPUs[slot].Links, nvlink{Peer: -1, Remote: remote, Device: spec.Device})
			}
		}
	}
}

// linkMesh assigns link numbers by peer, so that the m-th link of a pair is the m-th at both ends.
func linkMesh(hw *hardware, mesh [][]int) {
	first := func(slot, peer int) int { // the slot's first link to that peer
		n := 0
		for _, count := range mesh[slot][:peer] {
			n += count
		}
		return n
	}
	for slot, row := range mesh {
		for peer, count := range row {
			for m := range count {
				hw.GPUs[slot].Links = append(hw.GPUs[slot].Links, nvlink{
					Peer: peer, PeerLink: first(peer, slot) + m, Remote: hw.GPUs[peer].PCI, Device: hw.GPUs[peer].Model.PCIDevice,
				})
			}
		}
	}
}

// digest is the deterministic source of all values that look random.
func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// uuidOf derives a UUID from the parts.
func uuidOf(parts ...string) string {
	sum := digest(parts...)
	text := hex.EncodeToString(sum[:16])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

func serialOf(seed, name string, slot int) string {
	sum := digest(seed, name, "serial", fmt.Sprint(slot))
	return fmt.Sprintf("165%010d", binary.BigEndian.Uint64(sum[:8])%10_000_000_000)
}

// libraryFolder returns Debian's library directory for the architecture of this binary. Containers run on this host,
// whichever machine is simulated.
func libraryFolder() string {
	if runtime.GOARCH == "arm64" {
		return "usr/lib/aarch64-linux-gnu"
	}
	return "usr/lib/x86_64-linux-gnu"
}
