package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// The checks of the driver.
const (
	checkDriver    = "driver"
	checkLibraries = "libraries"
	checkNodes     = "device nodes"
	checkCharLinks = "/dev/char links"
	checkInstances = "GPU instances"
	checkMPS       = "MPS directories"
)

// procGPU is a GPU as the driver lists it in /proc.
type procGPU struct {
	address string
	uuid    string
	minor   uint32
}

// driver checks the kernel module.
func (c *checker) driver() {
	path := filepath.Join(c.deps.Proc, c.files().Proc, "version")
	content, err := hostconfig.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.wsl():
		c.problem(checkDriver, "PLATFORM_WSL", "%s exists and %s does not", wslDevice, path)
		return
	case errors.Is(err, fs.ErrNotExist):
		c.problem(checkDriver, "DRIVER_NOT_LOADED", "%s does not exist", path)
		return
	case err != nil:
		c.unknown(checkDriver, "%s: %s", path, reason(err))
		return
	}
	if c.version = gpu.ModuleVersion(string(content)); c.version == "" {
		c.unknown(checkDriver, "%s contains no version: %q", path, strings.TrimSpace(string(content[:min(len(content), 120)])))
		return
	}
	c.gpus = c.procGPUs()
	c.ok(checkDriver, "version %s, %s (%s)", c.version, phrase.Count(len(c.gpus), "GPU"), path)
}

// wslDevice is the only device of GPUs in the Windows Subsystem for Linux.
const wslDevice = "/dev/dxg"

// wsl reports whether the host is the Windows Subsystem for Linux.
func (c *checker) wsl() bool {
	found, err := exists(c.deps.HostRoot, wslDevice)
	return err == nil && found
}

// procGPUs returns the GPUs below the driver's folder in /proc, without those that the driver is configured to exclude.
func (c *checker) procGPUs() []procGPU {
	dir := filepath.Join(c.deps.Proc, c.files().Proc, "gpus")
	list, err := names(dir)
	if err != nil {
		return nil
	}
	var gpus []procGPU
	for _, name := range list {
		content, err := hostconfig.ReadFile(filepath.Join(dir, name, "information"))
		if err != nil {
			continue
		}
		values := fields(content)
		minor, err := strconv.ParseUint(values["Device Minor"], 10, 20)
		if err != nil || strings.EqualFold(values["GPU Excluded"], "yes") {
			continue
		}
		gpus = append(gpus, procGPU{address: name, uuid: values["GPU UUID"], minor: uint32(minor)})
	}
	return gpus
}

// libraries checks that the driver's libraries exist and have the module's version.
func (c *checker) libraries() {
	for _, name := range c.files().Libraries {
		link, target := c.findLibrary(name)
		_, version, _ := strings.Cut(filepath.Base(target), ".so.")
		switch {
		case link == "":
			c.problem(checkLibraries, "DRIVER_LIBRARY_MISSING", "%s is in none of the %d usual folders below %s",
				name, len(c.files().LibraryFolders), hostconfig.Root(c.deps.DriverRoot))
		case !strings.Contains(version, "."):
			c.unknown(checkLibraries, "%s does not lead to a file with a version in its name", link)
		case c.version != "" && version != c.version:
			c.problem(checkLibraries, "DRIVER_LIBRARY_VERSION", "%s is of version %s, the loaded kernel module of %s",
				link, version, c.version)
		default:
			c.ok(checkLibraries, "%s, version %s", link, version)
		}
	}
}

// findLibrary returns the first file with that name, and the target of its links below the driver root.
func (c *checker) findLibrary(name string) (link, target string) {
	root := hostconfig.Root(c.deps.DriverRoot)
	for _, folder := range c.files().LibraryFolders {
		full, err := securejoin.SecureJoin(root, filepath.Join(folder, name))
		if err != nil {
			continue
		}
		if _, err := os.Stat(full); err == nil {
			return filepath.Join(root, folder, name), full
		}
	}
	return "", ""
}

// wantedNode is a device node that should exist according to the driver's /proc.
type wantedNode struct {
	name string // below dev
	number
	// optional nodes may be missing, but must not be wrong.
	optional bool
}

// wantedNodes lists the nodes that all programs, each GPU, and each MIG capability need.
func (c *checker) wantedNodes() []wantedNode {
	majors, files := c.majors(), c.files()
	var wanted []wantedNode
	for _, node := range files.Nodes {
		if major, ok := majorOf(node, majors); ok {
			wanted = append(wanted, wantedNode{name: node.Name, number: number{major, node.Minor}, optional: node.Optional})
		}
	}
	own, _ := majorOf(files.Node, majors)
	for _, device := range c.gpus {
		wanted = append(wanted, wantedNode{name: fmt.Sprintf("%s%d", files.Node.Name, device.minor), number: number{own, device.minor}})
	}
	capability, ok := majorOf(files.Capability, majors)
	if !ok {
		return wanted
	}
	for _, file := range c.capabilityFiles() {
		content, err := hostconfig.ReadFile(file)
		if err != nil {
			continue
		}
		if minor, err := strconv.ParseUint(fields(content)["DeviceFileMinor"], 10, 20); err == nil {
			wanted = append(wanted, wantedNode{name: fmt.Sprintf("%s%d", files.Capability.Name, minor), number: number{capability, uint32(minor)}})
		}
	}
	return wanted
}

// majorOf returns the major number of a device node; false while its module is not loaded.
func majorOf(node gpu.DriverNode, majors map[string]uint32) (uint32, bool) {
	major, known := node.Major, node.Major != 0
	for _, driver := range node.Drivers {
		if registered, ok := majors[driver]; ok {
			major, known = registered, true
		}
	}
	return major, known
}

// unloaded lists the nodes whose module is not loaded.
func (c *checker) unloaded(dev string) (missing []string) {
	majors := c.majors()
	for _, node := range c.files().Nodes {
		if _, ok := majorOf(node, majors); !ok && !node.Optional {
			missing = append(missing, fmt.Sprintf("%s (the module %s is not loaded)", filepath.Join(dev, node.Name), strings.Join(node.Drivers, ", ")))
		}
	}
	return missing
}

// files returns what the driver has on a node.
func (c *checker) files() *gpu.DriverFiles { return &c.deps.Vendor.Files }

// capabilityFiles lists the files of the existing GPU instances and compute instances.
func (c *checker) capabilityFiles() []string {
	base := filepath.Join(c.deps.Proc, c.files().Proc, "capabilities")
	return slices.Concat(glob(base, "gpu*/mig/gi*/access"), glob(base, "gpu*/mig/gi*/ci*/access"))
}

// majors reads the character devices from /proc/devices.
func (c *checker) majors() map[string]uint32 {
	majors := map[string]uint32{}
	content, err := hostconfig.ReadFile(filepath.Join(c.deps.Proc, "devices"))
	if err != nil {
		return majors
	}
	text, _, _ := strings.Cut(string(content), "Block devices")
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 2 {
			continue
		}
		if major, err := strconv.ParseUint(words[0], 10, 12); err == nil {
			majors[words[1]] = uint32(major)
		}
	}
	return majors
}

// deviceNodes checks the device nodes, and that each has its link in /dev/char.
func (c *checker) deviceNodes() {
	if c.version == "" {
		c.notChecked(checkNodes, "no driver is loaded")
		return
	}
	dev := filepath.Join(hostconfig.Root(cmp.Or(c.deps.DevRoot, c.deps.DriverRoot)), "dev")
	missing := c.unloaded(dev)
	var unlinked []string
	found, wrong := 0, false
	for _, want := range c.wantedNodes() {
		path := filepath.Join(dev, want.name)
		got, err := characterDevice(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if !want.optional {
				missing = append(missing, path)
			}
			continue
		case errors.Is(err, fs.ErrInvalid):
			wrong = true
			c.problem(checkNodes, "DEVICE_NODE_WRONG", "%s is not a character device; the driver uses %d:%d", path, want.major, want.minor)
			continue
		case err != nil:
			wrong = true
			c.unknown(checkNodes, "%s: %s", path, reason(err))
			continue
		case got != want.number:
			wrong = true
			c.problem(checkNodes, "DEVICE_NODE_WRONG", "%s is %d:%d, the driver uses %d:%d (%s)", path, got.major,
				got.minor, want.major, want.minor, filepath.Join(c.deps.Proc, "devices"))
			continue
		}
		found++
		link := fmt.Sprintf("%s/char/%d:%d", dev, got.major, got.minor)
		if _, err := os.Lstat(link); err != nil {
			unlinked = append(unlinked, link)
		}
	}
	if len(missing) > 0 {
		c.problem(checkNodes, "DEVICE_NODE_MISSING", "%s", phrase.Some(missing, mostNames))
	} else if !wrong {
		c.ok(checkNodes, "%s below %s, with the driver's numbers", phrase.Count(found, "node"), dev)
	}
	switch {
	case c.deps.Simulated:
		c.notChecked(checkCharLinks, "simulated hardware has none")
	case len(unlinked) > 0:
		c.charLinks(fmt.Sprintf("%d of %s have none: %s", len(unlinked), phrase.Count(found, "node"), phrase.Some(unlinked, mostNames)))
	default:
		c.ok(checkCharLinks, "%s have one", phrase.Count(found, "node"))
	}
}

// gpuInstances reports GPU instances without a compute instance.
func (c *checker) gpuInstances() {
	instances := glob(filepath.Join(c.deps.Proc, c.files().Proc, "capabilities"), "gpu*/mig/gi*/access")
	if len(instances) == 0 {
		return
	}
	var empty []string
	for _, access := range instances {
		dir := filepath.Dir(access)
		if len(glob(dir, "ci*/access")) == 0 {
			empty = append(empty, dir)
		}
	}
	if len(empty) > 0 {
		c.problem(checkInstances, "GPU_INSTANCE_EMPTY", "%d of %s: %s", len(empty), phrase.Count(len(instances), "GPU instance"), phrase.Some(empty, mostNames))
		return
	}
	c.ok(checkInstances, "%s, each with a compute instance", phrase.Count(len(instances), "GPU instance"))
}

// mpsLeftovers reports directories of MPS daemons for GPUs that the node does not have.
func (c *checker) mpsLeftovers() {
	root, err := hostconfig.Beneath(c.deps.HostRoot, c.mpsRoot())
	if err != nil {
		c.unknown(checkMPS, "%s: %s", c.mpsRoot(), reason(err))
		return
	}
	list, err := names(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		c.unknown(checkMPS, "%s: %s", root, reason(err))
		return
	case c.version == "":
		c.notChecked(checkMPS, "no driver is loaded")
		return
	}
	var left []string
	for _, name := range list {
		known := slices.ContainsFunc(c.gpus, func(device procGPU) bool { return device.uuid == name })
		if c.deps.Vendor.UUIDPrefix != "" && strings.HasPrefix(name, c.deps.Vendor.UUIDPrefix) && !known {
			left = append(left, filepath.Join(root, name))
		}
	}
	if len(left) > 0 {
		c.problem(checkMPS, "MPS_LEFTOVER", "%s: no GPU of the node has that UUID", phrase.Some(left, mostNames))
		return
	}
	c.ok(checkMPS, "nothing left over in %s", root)
}
