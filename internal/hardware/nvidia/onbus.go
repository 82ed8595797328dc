package nvidia

import (
	"path"
	"strconv"
	"strings"
)

// PCI identifies a GPU by its vendor and by the class of its function: a VGA controller or a 3D controller (PCI Code and ID Assignment
// Specification, base class 03h).
const (
	pciVendor    = 0x10de
	classVGA     = 0x0300
	class3D      = 0x0302
	functionBits = 8
)

// CountOnBus returns how many of NVIDIA's GPUs the PCI bus has, with or without a driver, by sysfs. A GPU that another driver has, such as
// vfio-pci for a virtual machine, does not count; neither does one whose files cannot be read.
func CountOnBus(roots Roots) int {
	sys := tree{roots.Sys}
	count := 0
	for _, name := range sys.names(pciDevices) {
		folder := path.Join(pciDevices, name)
		class := sys.number(path.Join(folder, "class")) >> functionBits
		if sys.number(path.Join(folder, "vendor")) != pciVendor || class != classVGA && class != class3D {
			continue
		}
		if driver := path.Base(sys.readlink(path.Join(folder, "driver"))); driver == "." || driver == driverModule {
			count++
		}
	}
	return count
}

// number returns the number that a file has, such as 0x10de; 0 when it has none.
func (t tree) number(name string) uint64 {
	value, err := strconv.ParseUint(strings.TrimPrefix(t.line(name), "0x"), 16, 64)
	if err != nil {
		return 0
	}
	return value
}
