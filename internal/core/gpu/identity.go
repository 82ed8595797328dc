package gpu

import (
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

// DeviceKey identifies a device that can be held: a GPU, a MIG device, or a replica of either. It contains no name of a kubelet
// API, so that the device plugin and the DRA driver use the same key for the same device.
type DeviceKey struct {
	GPU UUID `json:"gpu"`
	// MIG is the UUID of the MIG device; empty for a whole GPU.
	MIG UUID `json:"mig,omitempty"`
	// Share is the number of the replica, from 1; 0 for a device that is not shared.
	Share int `json:"share,omitempty"`
}

// Device returns the UUID that a container sees: of the MIG device if there is one, otherwise of the GPU.
func (k DeviceKey) Device() UUID {
	if k.MIG != "" {
		return k.MIG
	}
	return k.GPU
}

// String returns GPU[/MIG][#replica].
func (k DeviceKey) String() string {
	text := string(k.GPU)
	if k.MIG != "" {
		text += "/" + string(k.MIG)
	}
	if k.Share > 0 {
		text += "#" + strconv.Itoa(k.Share)
	}
	return text
}

// CompareKeys orders keys by GPU, MIG device and replica.
func CompareKeys(a, b DeviceKey) int {
	if c := strings.Compare(string(a.GPU), string(b.GPU)); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.MIG), string(b.MIG)); c != 0 {
		return c
	}
	return a.Share - b.Share
}
