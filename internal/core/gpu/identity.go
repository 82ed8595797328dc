package gpu

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// UUID identifies a GPU ("GPU-…") or a MIG device ("MIG-…"), as NVML prints it (nvmlDeviceGetUUID). The UUID of a GPU never changes.
type UUID string

// IsMIG reports whether the UUID names a MIG device.
func (u UUID) IsMIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// PCIAddress is a PCI bus ID. Its text form is the kernel's, "0000:1b:00.0"; NVML's form has eight digits of the domain.
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// ParsePCIAddress parses "0000:1b:00.0" (sysfs) and "00000000:1B:00.0" (NVML).
func ParsePCIAddress(text string) (PCIAddress, error) {
	fail := func() (PCIAddress, error) {
		return PCIAddress{}, fmt.Errorf("parse PCI bus ID %q: want domain:bus:device.function in hexadecimal, as in 0000:1b:00.0", text)
	}
	domain, rest, ok := strings.Cut(text, ":")
	if !ok {
		return fail()
	}
	bus, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return fail()
	}
	device, function, ok := strings.Cut(rest, ".")
	if !ok || len(domain) > 8 || len(bus) != 2 || len(device) != 2 || len(function) != 1 {
		return fail()
	}
	d, err1 := strconv.ParseUint(domain, 16, 32)
	b, err2 := strconv.ParseUint(bus, 16, 8)
	v, err3 := strconv.ParseUint(device, 16, 5)
	f, err4 := strconv.ParseUint(function, 16, 3)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return fail()
	}
	return PCIAddress{Domain: uint32(d), Bus: uint8(b), Device: uint8(v), Function: uint8(f)}, nil
}

// String returns the kernel's form, which is the name of the directory in /sys/bus/pci/devices.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// MarshalText returns the kernel's form, for JSON and YAML.
func (a PCIAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses text as ParsePCIAddress does.
func (a *PCIAddress) UnmarshalText(text []byte) error {
	parsed, err := ParsePCIAddress(string(text))
	if err == nil {
		*a = parsed
	}
	return err
}

// Version is a major.minor pair: a compute capability, a CUDA version.
type Version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

func (v Version) String() string { return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor) }

// Placement is a range of a GPU's memory slices, which one GPU instance occupies. The zero value means that it is not known.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// Known reports whether the placement is known.
func (p Placement) Known() bool { return p.Size > 0 }

// String returns START:SIZE, as nvidia-smi prints a placement.
func (p Placement) String() string { return strconv.Itoa(p.Start) + ":" + strconv.Itoa(p.Size) }

// DeviceKey identifies a device that can be held: a GPU, a MIG device, the place of a MIG device that does not exist yet, or a
// replica of one of them. It contains no name of a kubelet API, so that the device plugin and the DRA driver use the same key for
// the same device.
type DeviceKey struct {
	GPU UUID `json:"gpu"`
	// MIG is the UUID of the MIG device; empty for a whole GPU, and for a key by placement.
	MIG UUID `json:"mig,omitempty"`
	// Placement is where the MIG device will be, before it exists and has a UUID; zero for all other keys.
	Placement Placement `json:"placement,omitzero"`
	// Share is the number of the replica, from 1; 0 for a device that is not shared.
	Share int `json:"share,omitempty"`
}

// Placed returns the key of the MIG device that is at the placement, or will be.
func Placed(id UUID, at Placement) DeviceKey { return DeviceKey{GPU: id, Placement: at} }

// Device returns the UUID that a container sees: of the MIG device if there is one, otherwise of the GPU.
func (k DeviceKey) Device() UUID {
	if k.MIG != "" {
		return k.MIG
	}
	return k.GPU
}

// Valid reports whether the key identifies a device: it has a GPU, a replica's number is not negative, and it names a MIG device in
// one way only.
func (k DeviceKey) Valid() bool {
	placed := k.Placement != Placement{}
	return k.GPU != "" && k.Share >= 0 && (!placed || k.MIG == "" && k.Placement.Start >= 0 && k.Placement.Known())
}

// String returns GPU[/MIG][#replica]; a key by placement has START:SIZE in the place of the MIG device.
func (k DeviceKey) String() string {
	text := string(k.GPU)
	switch {
	case k.MIG != "":
		text += "/" + string(k.MIG)
	case k.Placement.Known():
		text += "/" + k.Placement.String()
	}
	if k.Share > 0 {
		text += "#" + strconv.Itoa(k.Share)
	}
	return text
}

// CompareKeys orders keys by GPU, MIG device, placement and replica: a whole GPU first, then placements, then MIG devices.
func CompareKeys(a, b DeviceKey) int {
	if c := strings.Compare(string(a.GPU), string(b.GPU)); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.MIG), string(b.MIG)); c != 0 {
		return c
	}
	if a.Placement != b.Placement {
		return cmp.Or(a.Placement.Start-b.Placement.Start, a.Placement.Size-b.Placement.Size)
	}
	return a.Share - b.Share
}
