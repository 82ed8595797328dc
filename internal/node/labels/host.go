package labels

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Host is what labels say that no driver tells.
type Host struct {
	// Machine is the DMI product name.
	Machine string
	// Classes are the PCI classes of the cards, such as 0x030200.
	Classes map[gpu.UUID]uint32
	// VGPU is nil where that could not be read.
	VGPU *VGPU
}

// VGPU says whether a card is one that a hypervisor cut out of its own.
type VGPU struct {
	Present bool
	// DriverVersion and DriverBranch are of the hypervisor's driver.
	DriverVersion, DriverBranch string
}

// maxSysFile bounds what is read of a file: the configuration space of PCI Express has 4 KiB.
const maxSysFile = 4 << 10

// ReadHost reads the host's facts below the root of its sysfs, usually /sys. What cannot be read is left
// out, as on machines without DMI. The configuration space of a card takes root to read.
func ReadHost(sys string, snapshot *gpu.Snapshot) Host {
	host := Host{Machine: line(sys, "class/dmi/id/product_name"), Classes: map[gpu.UUID]uint32{}}
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		folder := path.Join("bus/pci/devices", card.PCI.String())
		class, err := strconv.ParseUint(strings.TrimPrefix(line(sys, path.Join(folder, "class")), "0x"), 16, 32)
		if err == nil {
			host.Classes[card.UUID] = uint32(class)
		}
		space, err := read(sys, path.Join(folder, "config"))
		if err != nil || card.Health.State == gpu.Gone {
			continue
		}
		found, err := parseVGPU(space)
		if err == nil && (host.VGPU == nil || found.Present && !host.VGPU.Present) {
			host.VGPU = &found
		}
	}
	return host
}

func line(sys, name string) string {
	content, err := read(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func read(sys, name string) (content []byte, err error) {
	file, err := os.OpenInRoot(sys, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, maxSysFile))
}

// The places of a PCI configuration space, and of the vendor's capability with which a virtual GPU
// describes its hypervisor: after its head come records of a type, a length that counts these two
// bytes, and data. That of type 0 has the version and the branch of the driver.
const (
	minSpace         = 256
	statusAt         = 0x06
	hasCapabilities  = 1 << 4
	capabilitiesAt   = 0x34
	firstCapability  = 0x40
	vendorCapability = 0x09
	signatureAt      = 3
	signature        = "VF"
	recordsAt        = signatureAt + len(signature)
	recordHead       = 2
	driverRecord     = 0
	driverField      = 10
	maxCapabilities  = (minSpace - firstCapability) / 4
)

// Why a configuration space does not say: whoever is not root sees the start of it only, and a
// device that is off the bus reads as ones.
var (
	errSpaceCut = errors.New("the configuration space is cut short")
	errOffBus   = errors.New("the device does not answer on the bus")
)

// parseVGPU looks for a virtual GPU's capability.
func parseVGPU(space []byte) (VGPU, error) {
	if len(space) < firstCapability {
		return VGPU{}, errSpaceCut
	}
	if space[0] == 0xff && space[1] == 0xff {
		return VGPU{}, errOffBus
	}
	if binary.LittleEndian.Uint16(space[statusAt:])&hasCapabilities == 0 {
		return VGPU{}, nil
	}
	if len(space) < minSpace {
		return VGPU{}, errSpaceCut
	}
	space = space[:minSpace]
	at := int(space[capabilitiesAt]) &^ 3
	for range maxCapabilities { // the list may be a ring
		if at < firstCapability || at+recordsAt > len(space) {
			break
		}
		capability := space[at:]
		if capability[0] == vendorCapability && string(capability[signatureAt:recordsAt]) == signature {
			return driverOf(capability[recordsAt:max(recordsAt, min(int(capability[2]), len(capability)))]), nil
		}
		at = int(capability[1]) &^ 3
	}
	return VGPU{}, nil
}

// driverOf reads a virtual GPU's records.
func driverOf(records []byte) VGPU {
	found := VGPU{Present: true}
	for len(records) >= recordHead && records[0] != driverRecord {
		length := int(records[1])
		if length < recordHead || length > len(records) {
			return found
		}
		records = records[length:]
	}
	if len(records) >= recordHead+2*driverField {
		field := func(i int) string {
			from := recordHead + i*driverField
			return strings.Trim(string(records[from:from+driverField]), "\x00 ")
		}
		found.DriverVersion, found.DriverBranch = field(0), field(1)
	}
	return found
}
