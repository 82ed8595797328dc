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

// driverParams is a file that is there while the driver's kernel module is loaded.
const driverParams = "driver/nvidia/params"

// defaultNodeMode is the mode of the driver's device nodes unless the driver says another.
const defaultNodeMode = 0o666

// wantedNode is a device node that has to be there, below dev.
type wantedNode struct {
	name         string
	major, minor uint32
	mode         fs.FileMode
	// needed is true for what every CUDA program opens; missing says why it cannot be made.
	needed  bool
	missing string
}

// controlWanted are the control nodes of the modules that are loaded.
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

// driverMajor is the major of /dev/nvidiactl and /dev/nvidiaN, by the names that drivers have had for it.
func (a *work) driverMajor() uint32 {
	for _, name := range []string{"nvidia", "nvidiactl", "nvidia-frontend"} {
		if major := a.majorOf(name); major != 0 {
			return major
		}
	}
	return nvidiaMajor
}

// prepareNodes makes the control nodes and those of the GPUs that the driver lists, before NVML opens them.
func (a *Adapter) prepareNodes() {
	if len(a.makeNodes) == 0 || !a.mayMakeNodes() {
		return
	}
	for _, node := range a.controlWanted() {
		a.makeNode(node)
	}
	if a.session != nil {
		return // the scan makes those of new GPUs
	}
	for _, name := range a.proc.names("driver/nvidia/gpus") {
		content, err := a.proc.read(path.Join("driver/nvidia/gpus", name, "information"))
		if err != nil {
			continue
		}
		if card, ok := parseInformation(content); ok {
			a.makeGPUNode(card.Minor)
		}
	}
}

func (a *work) makeGPUNode(minor int) {
	if minor >= 0 && len(a.makeNodes) > 0 && a.mayMakeNodes() {
		a.makeNode(wantedNode{name: "nvidia" + strconv.Itoa(minor), major: a.driverMajor(), minor: uint32(minor), mode: defaultNodeMode})
	}
}

// mayMakeNodes tells whether the driver's parameters are there and do not forbid that programs make its device nodes.
func (a *work) mayMakeNodes() bool {
	params, err := a.proc.read(driverParams)
	return err == nil && fields(params)["ModifyDeviceFiles"] != "0"
}

// makeNode makes a device node that is missing, or that has the numbers of a module that was loaded before, below each root
// that the adapter may write to.
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
			a.log.Error("a device node is missing and cannot be made", "node", name, "major", node.major, "minor", node.minor, "error", err)
		case made:
			delete(a.notMade, name)
			a.log.Warn("a device node was missing, or of a module that is not loaded any more: it was made",
				"node", name, "major", node.major, "minor", node.minor, "mode", fmt.Sprintf("%#o", node.mode))
		}
	}
}

// mknod makes a character device below dev unless it is there. Another kind of file stays.
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
	folder, base := path.Split(path.Join("dev", node.name))
	if err := root.Mkdir(path.Clean(folder), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if found {
		if err := root.Remove(path.Join(folder, base)); err != nil {
			return false, err
		}
	}
	at, err := root.Open(path.Clean(folder))
	if err != nil {
		return false, err
	}
	defer at.Close()
	number := unix.Mkdev(node.major, node.minor)
	if err := unix.Mknodat(int(at.Fd()), base, unix.S_IFCHR|uint32(node.mode.Perm()), int(number)); err != nil {
		return false, fmt.Errorf("mknod: %w", err)
	}
	// The mode must not depend on this process's umask.
	return true, root.Chmod(path.Join(folder, base), node.mode)
}

// missingControl are the faults of a node whose driver is loaded and that lacks what every CUDA program opens.
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
			why = "making it failed: " + failed
		}
		if why == "" {
			why = "nobody made it; run nvidia-modprobe -u -c 0 on the node, or the agent privileged"
		}
		faults = append(faults, unstamped("DEVICE_NODE_MISSING",
			fmt.Sprintf("%s is missing, so no CUDA program can start on this node: %s", name, why)))
	}
	return faults
}
