package nvidia

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxFile bounds what is read of a kernel file.
const maxFile = 64 << 10

// tree is a directory. Names below it, symbolic links included, cannot leave it.
type tree struct{ root string }

// read returns a file's content, at most maxFile bytes of it.
func (t tree) read(name string) ([]byte, error) {
	file, err := os.OpenInRoot(t.root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// line returns a file's content without surrounding blanks; empty when it cannot be read.
func (t tree) line(name string) string {
	content, err := t.read(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// hostMemory returns the size of the host's memory in bytes, by its NUMA nodes; 0 if /sys does not have it.
func (t tree) hostMemory() uint64 {
	const nodes = "devices/system/node"
	total := uint64(0)
	for _, name := range t.names(nodes) {
		content, err := t.read(path.Join(nodes, name, "meminfo"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			// Node 0 MemTotal:       131072000 kB
			if fields := strings.Fields(line); len(fields) == 5 && fields[2] == "MemTotal:" {
				size, err := strconv.ParseUint(fields[3], 10, 44)
				if err == nil {
					total += size << 10
				}
			}
		}
	}
	return total
}

// names lists a directory in order; empty when it cannot be read.
func (t tree) names(name string) []string {
	dir, err := os.OpenInRoot(t.root, name)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

// stat follows links beneath the root.
func (t tree) stat(name string) (fs.FileInfo, error) {
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Stat(name)
}

// readlink returns the text of a symbolic link; empty when name is not one.
func (t tree) readlink(name string) string {
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return ""
	}
	defer root.Close()
	target, err := root.Readlink(name)
	if err != nil {
		return ""
	}
	return target
}

// characterDevice returns the numbers of a device node. found reports whether a file of that name exists, device or not.
func (t tree) characterDevice(name string) (major, minor uint32, device, found bool) {
	info, err := t.stat(name)
	if err != nil {
		return 0, 0, false, false
	}
	number, ok := deviceNumber(info)
	if !ok {
		return 0, 0, false, true
	}
	return unix.Major(number), unix.Minor(number), true, true
}

// presence is whether sysfs has a PCI device.
type presence int

const (
	unclear presence = iota // sysfs cannot be read
	present
	absent
)

const pciDevices = "bus/pci/devices"

func pciFolder(address gpu.PCIAddress) string { return path.Join(pciDevices, address.String()) }

// driverModule is the kernel module of the driver.
const driverModule = "nvidia"

// module identifies one load of a kernel module, by the inode of its directory in sysfs, which differs between loads. It is
// empty for a module that is not loaded.
func (t tree) module(name string) string {
	info, err := t.stat(path.Join("module", name))
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return strconv.FormatUint(stat.Ino, 10)
}

// hasPCI reports whether sysfs has a device at an address.
func (t tree) hasPCI(address gpu.PCIAddress) presence {
	_, err := t.stat(pciFolder(address))
	switch {
	case err == nil:
		return present
	case !errors.Is(err, fs.ErrNotExist):
		return unclear
	}
	if _, err := t.stat(pciDevices); err != nil {
		return unclear
	}
	return absent
}

// offBus reports whether the device's configuration space reads as all ones, which is what the root port answers for a device
// that is no longer there.
func (t tree) offBus(address gpu.PCIAddress) bool {
	content, err := t.read(path.Join(pciFolder(address), "config"))
	return err == nil && len(content) >= 4 && string(content[:4]) == "\xff\xff\xff\xff"
}

// numaNode reads the NUMA node of a PCI device.
func (t tree) numaNode(address gpu.PCIAddress) int {
	node, err := strconv.Atoi(t.line(path.Join(pciFolder(address), "numa_node")))
	if err != nil || node < 0 {
		return gpu.NoNUMANode
	}
	return node
}

// fields reads the "Name: value" lines of the driver's files under /proc; the first line of a name counts.
func fields(content []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if _, have := values[name]; ok && !have {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}

func comparePCI(a, b gpu.PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}
