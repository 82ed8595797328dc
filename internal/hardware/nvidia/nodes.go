package nvidia

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The numbers of the nvidia driver's fixed character devices (Documentation/admin-guide/devices.txt gives 195 to NVIDIA).
const (
	nvidiaMajor     = 195
	nvidiactlMinor  = 255
	modesetMinor    = 254
	uvmToolsMinor   = 1
	uvmDriver       = "nvidia-uvm"
	capsDriver      = "nvidia-caps"
	capabilitiesDir = "driver/nvidia/capabilities"
)

// deviceNumber returns the device number of a character device.
func deviceNumber(info fs.FileInfo) (uint64, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, false
	}
	return uint64(stat.Rdev), true // The type differs between architectures.
}

// node describes the device node at a path such as "nvidia0" below dev. The numbers are those of the inode. When there is none,
// or it is not a character device, they are the given ones and HostPath is empty: the host cannot open it.
func (a *work) node(name string, major, minor uint32) gpu.DeviceNode {
	node := gpu.DeviceNode{Path: path.Join("/dev", name), Major: major, Minor: minor}
	if realMajor, realMinor, ok, _ := a.dev.characterDevice(path.Join("dev", name)); ok {
		node.Major, node.Minor = realMajor, realMinor
		node.HostPath = filepath.Join(a.dev.root, "dev", name)
	}
	return node
}

// gpuNodes returns the nodes that open one GPU: /dev/nvidiaN, then the DRM nodes that sysfs lists for its PCI device and that
// exist.
func (a *work) gpuNodes(address gpu.PCIAddress, minor int) []gpu.DeviceNode {
	var nodes []gpu.DeviceNode
	a.makeGPUNode(minor)
	if minor >= 0 {
		nodes = append(nodes, a.node("nvidia"+strconv.Itoa(minor), nvidiaMajor, uint32(minor)))
	}
	dir := path.Join(pciFolder(address), "drm")
	for _, name := range a.sys.names(dir) {
		if !isDRM(name) {
			continue
		}
		var major, number uint32
		if _, err := fmt.Sscanf(a.sys.line(path.Join(dir, name, "dev")), "%d:%d", &major, &number); err != nil {
			continue
		}
		if node := a.node(path.Join("dri", name), major, number); node.HostPath != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// isDRM reports whether a name is that of a DRM node, such as card1 or renderD128, not that of a connector.
func isDRM(name string) bool {
	for _, prefix := range []string{"card", "renderD"} {
		digits, ok := strings.CutPrefix(name, prefix)
		if _, err := strconv.ParseUint(digits, 10, 16); ok && err == nil {
			return true
		}
	}
	return false
}

// controlNodes returns the nodes that every GPU container needs, as far as this host has them.
func (a *Adapter) controlNodes() []gpu.DeviceNode {
	uvm := a.majorOf(uvmDriver)
	var nodes []gpu.DeviceNode
	for _, want := range []gpu.DeviceNode{
		{Path: "nvidiactl", Major: nvidiaMajor, Minor: nvidiactlMinor},
		{Path: "nvidia-modeset", Major: nvidiaMajor, Minor: modesetMinor},
		{Path: "nvidia-uvm", Major: uvm, Minor: 0},
		{Path: "nvidia-uvm-tools", Major: uvm, Minor: uvmToolsMinor},
	} {
		if _, _, _, found := a.dev.characterDevice(path.Join("dev", want.Path)); found {
			nodes = append(nodes, a.node(want.Path, want.Major, want.Minor))
		}
	}
	return nodes
}

// majorOf returns a driver's major number in /proc/devices; 0 when it has none.
func (a *work) majorOf(driver string) uint32 {
	content, err := a.proc.read("devices")
	if err != nil {
		return 0
	}
	return parseDevices(content, driver)
}

// parseDevices parses lines such as "235 nvidia-caps" below "Character devices:".
func parseDevices(content []byte, driver string) uint32 {
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "Block devices") {
			break
		}
		words := strings.Fields(line)
		if len(words) != 2 || words[1] != driver {
			continue
		}
		if major, err := strconv.ParseUint(words[0], 10, 12); err == nil {
			return uint32(major)
		}
	}
	return 0
}

// capabilityNodes returns the two nodes of a MIG device, of the GPU instance and of the compute instance. A container cannot
// use the device without them. Their minor numbers are in /proc/driver/nvidia/capabilities.
func (a *work) capabilityNodes(minor, gi, ci int) []gpu.DeviceNode {
	instance := path.Join(capabilitiesDir, fmt.Sprintf("gpu%d/mig/gi%d", minor, gi))
	caps := a.majorOf(capsDriver)
	var nodes []gpu.DeviceNode
	for _, name := range []string{path.Join(instance, "access"), path.Join(instance, fmt.Sprintf("ci%d", ci), "access")} {
		content, err := a.proc.read(name)
		if err != nil {
			continue
		}
		values := fields(content)
		number, err := strconv.ParseUint(values["DeviceFileMinor"], 10, 20)
		if err != nil {
			continue
		}
		mode, err := strconv.ParseUint(values["DeviceFileMode"], 10, 9)
		if err != nil {
			mode = 0o444
		}
		if values["DeviceFileModify"] != "0" {
			a.makeNode(wantedNode{name: fmt.Sprintf("nvidia-caps/nvidia-cap%d", number), major: caps, minor: uint32(number), mode: fs.FileMode(mode)})
		}
		nodes = append(nodes, a.node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", number), caps, uint32(number)))
	}
	return nodes
}
