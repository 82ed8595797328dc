package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
)

// The PCI vendor and device IDs of NVIDIA and of the bridges between a GPU and its socket.
const (
	vendorNVIDIA = 0x10de
	vendorIntel  = 0x8086
	vendorSwitch = 0x1000
)

// The PCI classes: a 3D controller, a bridge between PCI buses, an NVSwitch ("other bridge").
const (
	class3D       = 0x030200
	classBridge   = 0x060400
	classNVSwitch = 0x068000
)

// addSystem adds the files of the machine itself: DMI and NUMA.
func addSystem(b *treeBuilder, hw *hardware) {
	b.file("sys/class/dmi/id/product_name", hw.Product+"\n")
	const nodes = "sys/devices/system/node"
	ids := make([]int, 0, len(hw.NUMA)+len(hw.GPUs))
	addNode := func(id int, cpus string, memoryKiB uint64) {
		ids = append(ids, id)
		folder := fmt.Sprintf("%s/node%d", nodes, id)
		b.file(folder+"/cpulist", cpus+"\n")
		b.file(folder+"/meminfo", fmt.Sprintf("Node %d MemTotal:       %d kB\n", id, memoryKiB))
	}
	for _, node := range hw.NUMA {
		addNode(node.ID, node.CPUs, uint64(node.MemoryGiB)<<20)
	}
	for _, gpu := range hw.GPUs {
		if gpu.MemoryNUMA >= 0 {
			addNode(gpu.MemoryNUMA, "", gpu.Model.MemoryMiB<<10)
		}
	}
	for _, name := range []string{"online", "possible"} {
		b.file(nodes+"/"+name, numberList(ids)+"\n")
	}
}

// numberList formats a kernel list, such as "0-3,8".
func numberList(numbers []int) string {
	numbers = slices.Sorted(slices.Values(numbers))
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// pciFunction describes one PCI function in sysfs.
type pciFunction struct {
	bdf       string
	path      []string
	vendor    uint32
	device    uint32
	subsystem uint32 // device in the upper half, vendor in the lower
	class     uint32
	numa      int
	cpus      string
	driver    string
	dead      bool // the device does not respond: its configuration space reads as ones
}

// folder returns the function's path below /sys/devices, nested as the kernel does.
func (f *pciFunction) folder() string {
	top := f.bdf
	if len(f.path) > 0 {
		top = f.path[0]
	}
	parts := append([]string{"sys/devices/pci" + top[:len("0000:00")]}, f.path...)
	return path.Join(append(parts, f.bdf)...)
}

func addPCI(b *treeBuilder, hw *hardware, st *state) {
	bridges := map[string]bool{}
	for slot := range hw.GPUs {
		gpu, health := &hw.GPUs[slot], &st.GPUs[slot]
		addBridges(b, bridges, gpu.Path, gpu.NUMA)
		if health.Removed {
			continue
		}
		function := &pciFunction{
			bdf: gpu.PCI, path: gpu.Path, vendor: vendorNVIDIA, device: gpu.Model.PCIDevice, subsystem: gpu.Model.PCISubsystem,
			class: class3D, numa: gpu.NUMA, cpus: gpu.CPUs, dead: health.OffBus,
		}
		if !st.DriverGone {
			function.driver = "nvidia"
			folder := function.folder()
			b.file(fmt.Sprintf("%s/drm/card%d/dev", folder, gpu.Card), fmt.Sprintf("%d:%d\n", hw.Majors.DRM, gpu.Card))
			b.file(fmt.Sprintf("%s/drm/renderD%d/dev", folder, gpu.Render), fmt.Sprintf("%d:%d\n", hw.Majors.DRM, gpu.Render))
		}
		addFunction(b, function)
	}
	for _, s := range hw.Switches {
		cpus := ""
		for _, node := range hw.NUMA {
			if node.ID == s.NUMA {
				cpus = node.CPUs
			}
		}
		addBridges(b, bridges, s.Path, s.NUMA)
		function := &pciFunction{bdf: s.PCI, path: s.Path, vendor: vendorNVIDIA, device: s.Device,
			subsystem: vendorNVIDIA, class: classNVSwitch, numa: s.NUMA, cpus: cpus}
		if !st.DriverGone {
			function.driver = "nvidia-nvswitch"
		}
		addFunction(b, function)
	}
}

// addBridges adds the root port and the switch ports above a function, each once.
func addBridges(b *treeBuilder, done map[string]bool, above []string, numa int) {
	for i, bdf := range above {
		if done[bdf] {
			continue
		}
		done[bdf] = true
		bridge := &pciFunction{bdf: bdf, path: above[:i], vendor: vendorSwitch, device: 0xc030, class: classBridge, numa: numa}
		if i == 0 {
			bridge.vendor, bridge.device = vendorIntel, 0x352a
		}
		addFunction(b, bridge)
	}
}

func addFunction(b *treeBuilder, f *pciFunction) {
	folder := f.folder()
	b.link("sys/bus/pci/devices/"+f.bdf, "../../../devices/"+strings.TrimPrefix(folder, "sys/devices/"))
	attribute := func(name, format string, value any) { b.file(folder+"/"+name, fmt.Sprintf(format, value)+"\n") }
	attribute("vendor", "0x%04x", f.vendor)
	attribute("device", "0x%04x", f.device)
	attribute("class", "0x%06x", f.class)
	attribute("numa_node", "%d", f.numa)
	if f.class == classBridge { // readers need no more of a bridge, and a machine has many
		return
	}
	attribute("subsystem_vendor", "0x%04x", f.subsystem&0xffff)
	attribute("subsystem_device", "0x%04x", f.subsystem>>16)
	attribute("local_cpulist", "%s", f.cpus)
	b.file(folder+"/config", string(f.config()))
	uevent := fmt.Sprintf("PCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SLOT_NAME=%s\n", f.class, f.vendor, f.device, f.bdf)
	if f.driver != "" {
		uevent = "DRIVER=" + f.driver + "\n" + uevent
		drivers := "sys/bus/pci/drivers/" + f.driver
		up := strings.Repeat("../", strings.Count(folder, "/"))
		b.link(folder+"/driver", up+strings.TrimPrefix(drivers, "sys/"))
		b.link(drivers+"/"+f.bdf, "../../../../"+strings.TrimPrefix(folder, "sys/"))
	}
	b.file(folder+"/uevent", uevent)
}

// config returns the start of the function's configuration space. A device that has fallen off the bus reads as ones.
func (f *pciFunction) config() []byte {
	const size = 64
	if f.dead {
		return bytes.Repeat([]byte{0xff}, size)
	}
	space := make([]byte, size)
	binary.LittleEndian.PutUint16(space[0x00:], uint16(f.vendor))
	binary.LittleEndian.PutUint16(space[0x02:], uint16(f.device))
	binary.LittleEndian.PutUint16(space[0x04:], 0x0406) // memory, bus master, no INTx
	binary.LittleEndian.PutUint32(space[0x08:], f.class<<8|0xa1)
	binary.LittleEndian.PutUint16(space[0x2c:], uint16(f.subsystem))
	binary.LittleEndian.PutUint16(space[0x2e:], uint16(f.subsystem>>16))
	return space
}
