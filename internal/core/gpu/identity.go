package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// UUID names one GPU ("GPU-…") or one MIG device ("MIG-…") for the life of the
// silicon, as NVML prints it (nvmlDeviceGetUUID).
type UUID string

// IsMIG tells whether the UUID names a MIG device.
func (u UUID) IsMIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// PCIAddress is a PCI bus ID. Its text form is the kernel's,
// "0000:1b:00.0"; NVML's own form has eight domain digits.
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// ParsePCIAddress reads "0000:1b:00.0" (sysfs) and "00000000:1B:00.0" (NVML).
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

// String prints the kernel's form, the name of the folder in /sys/bus/pci/devices.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// MarshalText makes the kernel's form the JSON and YAML form.
func (a PCIAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what ParsePCIAddress reads.
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

// DeviceKey names a piece of silicon that can be held: a GPU, a MIG device of it,
// or one share of either. It never contains an API's name for the piece, so that
// the device plugin and the DRA driver mean the same thing by the same key.
type DeviceKey struct {
	GPU UUID `json:"gpu"`
	// MIG is the UUID of the MIG device; empty for a whole GPU.
	MIG UUID `json:"mig,omitempty"`
	// Share counts the replicas of a shared device from 1; 0 is the device unshared.
	Share int `json:"share,omitempty"`
}

// Device is the UUID that a container sees: of the MIG device if there is one, otherwise of the GPU.
func (k DeviceKey) Device() UUID {
	if k.MIG != "" {
		return k.MIG
	}
	return k.GPU
}

// String prints GPU[/MIG][#share].
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

// CompareKeys orders keys by GPU, MIG device and share.
func CompareKeys(a, b DeviceKey) int {
	if c := strings.Compare(string(a.GPU), string(b.GPU)); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.MIG), string(b.MIG)); c != 0 {
		return c
	}
	return a.Share - b.Share
}
