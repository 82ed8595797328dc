package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// driverParams is a file that exists while the driver's kernel module is loaded.
const driverParams = "driver/nvidia/params"

// defaultNodeMode is the mode of the driver's device nodes unless the driver names another one.
const defaultNodeMode = 0o666

// wantedNode is a device node that must exist below dev.
type wantedNode struct {
	name  string
	major uint32
	minor uint32
	mode  fs.FileMode
	// needed is true for a node that every CUDA program opens; missing is the reason why it cannot be created.
	needed  bool
	missing string
}

// controlWanted returns the control nodes of the loaded modules.
func (a *Adapter) controlWanted() []wantedNode {
	driver := a.driverMajor()
	nodes := []wantedNode{{name: "nvidiactl", major: driver, minor: nvidiactlMinor, mode: defaultNodeMode, needed: true}}
	if _, err := a.sys.stat("module/nvidia_modeset"); err == nil || a.majorOf("nvidia-modeset") != 0 {
		nodes = append(nodes, wantedNode{name: "nvidia-modeset", major: driver, minor: modesetMinor, mode: defaultNodeMode})
	}
	uvm, why := a.majorOf(uvmDriver), ""
	if uvm == 0 {
		why = "the module nvidia-uvm is not loaded (it is not in /proc/devices); load it: modprobe nvidia-uvm"
	}
	return append(nodes,
		wantedNode{name: "nvidia-uvm", major: uvm, mode: defaultNodeMode, needed: true, missing: why},
		wantedNode{name: "nvidia-uvm-tools", major: uvm, minor: uvmToolsMinor, mode: defaultNodeMode, missing: why})
}

// driverMajor returns the major number of /dev/nvidiactl and /dev/nvidiaN. Its name differs between drivers.
func (a *work) driverMajor() uint32 {
	for _, name := range []string{"nvidia", "nvidiactl", "nvidia-frontend"} {
		if major := a.majorOf(name); major != 0 {
			return major
		}
	}
	return nvidiaMajor
}

// prepareNodes creates the control nodes and those of the GPUs that the driver lists, before NVML opens them.
func (a *Adapter) prepareNodes() {
	if len(a.makeNodes) == 0 || !a.mayMakeNodes() {
		return
	}
	for _, node := range a.controlWanted() {
		a.makeNode(node)
	}
	if a.session != nil {
		return // the scan creates those of new GPUs
	}
	for _, name := range a.proc.names("driver/nvidia/gpus") {
		content, err := a.proc.read(path.Join("driver/nvidia/gpus", name, "information"))
		if err != nil {
			continue
		}
		if g, ok := parseInformation(content); ok {
			a.makeGPUNode(g.Minor)
		}
	}
}

func (a *work) makeGPUNode(minor int) {
	if minor >= 0 && len(a.makeNodes) > 0 && a.mayMakeNodes() {
		a.makeNode(wantedNode{name: "nvidia" + strconv.Itoa(minor), major: a.driverMajor(), minor: uint32(minor), mode: defaultNodeMode})
	}
}

// mayMakeNodes reports whether the driver is loaded and its parameters allow programs to create its device nodes.
func (a *work) mayMakeNodes() bool {
	params, err := a.proc.read(driverParams)
	return err == nil && fields(params)["ModifyDeviceFiles"] != "0"
}

// makeNode creates a device node that is missing, or that has the numbers of an earlier load of a module, below each root of
// Deps.MakeNodes.
func (a *work) makeNode(node wantedNode) {
	if len(a.makeNodes) == 0 || node.major == 0 {
		return
	}
	for _, root := range a.makeNodes {
		made, err := (tree{root}).mknod(node)
		name := path.Join(root, "dev", node.name)
		switch {
		case err != nil && a.notMade[name] != err.Error():
			a.notMade[name] = err.Error()
			a.log.Error("Could not create a missing device node", "node", name, "major", node.major, "minor", node.minor, "error", err)
		case made:
			delete(a.notMade, name)
			a.log.Warn("Created a device node that was missing or had outdated numbers",
				"node", name, "major", node.major, "minor", node.minor, "mode", fmt.Sprintf("%#o", node.mode))
		}
	}
}

// mknod creates a character device below dev unless it exists. A file of another kind stays.
func (t tree) mknod(node wantedNode) (made bool, err error) {
	major, minor, device, found := t.characterDevice(path.Join("dev", node.name))
	if found && (!device || major == node.major && minor == node.minor) {
		return false, nil
	}
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return false, err
	}
	defer root.Close()
	dir, base := path.Split(path.Join("dev", node.name))
	if err := root.Mkdir(path.Clean(dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if found {
		if err := root.Remove(path.Join(dir, base)); err != nil {
			return false, err
		}
	}
	at, err := root.Open(path.Clean(dir))
	if err != nil {
		return false, err
	}
	defer at.Close()
	number := unix.Mkdev(node.major, node.minor)
	if err := unix.Mknodat(int(at.Fd()), base, unix.S_IFCHR|uint32(node.mode.Perm()), int(number)); err != nil {
		return false, fmt.Errorf("mknod: %w", err)
	}
	// The mode must not depend on this process's umask.
	return true, root.Chmod(path.Join(dir, base), node.mode)
}

// missingControl returns the faults of a node whose driver is loaded and that lacks a device node that every CUDA program
// opens.
func (a *Adapter) missingControl() []gpu.Cause {
	if _, err := a.proc.read(driverParams); err != nil {
		return nil
	}
	var faults []gpu.Cause
	for _, node := range a.controlWanted() {
		if _, _, _, found := a.dev.characterDevice(path.Join("dev", node.name)); found || !node.needed {
			continue
		}
		name := path.Join(a.dev.root, "dev", node.name)
		why := node.missing
		if failed := a.notMade[name]; failed != "" && why == "" {
			why = "creating it failed: " + failed
		}
		if why == "" {
			why = "it was not created; run nvidia-modprobe -u -c 0 on the node, or the agent privileged"
		}
		faults = append(faults, newCause("DEVICE_NODE_MISSING",
			fmt.Sprintf("%s is missing, so no CUDA program can start on this node: %s", name, why)))
	}
	return faults
}
