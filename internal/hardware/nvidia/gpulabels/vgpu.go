package gpulabels

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/berth-gpu/berth/internal/core/labelset"
)

// Offsets in a PCI configuration space, and in the vendor's capability by which a virtual GPU describes its hypervisor:
// its header is followed by records of a type, a length that counts these two bytes, and data. The record of type 0 has
// the version and the branch of the driver.
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

// Reasons why a configuration space has no answer: only root can read more than its start, and all bytes of a device
// that is off the bus read as ones.
var (
	errSpaceCut = errors.New("the configuration space is cut short")
	errOffBus   = errors.New("the device does not answer on the bus")
)

// VirtualGPU reports whether the configuration space has the capability of a virtual GPU, and returns its data.
func (Vendor) VirtualGPU(space []byte) (labelset.VGPU, error) {
	if len(space) < firstCapability {
		return labelset.VGPU{}, errSpaceCut
	}
	if space[0] == 0xff && space[1] == 0xff {
		return labelset.VGPU{}, errOffBus
	}
	if binary.LittleEndian.Uint16(space[statusAt:])&hasCapabilities == 0 {
		return labelset.VGPU{}, nil
	}
	if len(space) < minSpace {
		return labelset.VGPU{}, errSpaceCut
	}
	space = space[:minSpace]
	at := int(space[capabilitiesAt]) &^ 3
	for range maxCapabilities { // the list may have a cycle
		if at < firstCapability || at+recordsAt > len(space) {
			break
		}
		capability := space[at:]
		if capability[0] == vendorCapability && string(capability[signatureAt:recordsAt]) == signature {
			return driverOf(capability[recordsAt:max(recordsAt, min(int(capability[2]), len(capability)))]), nil
		}
		at = int(capability[1]) &^ 3
	}
	return labelset.VGPU{}, nil
}

// driverOf reads the records of a virtual GPU.
func driverOf(records []byte) labelset.VGPU {
	found := labelset.VGPU{Present: true}
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
