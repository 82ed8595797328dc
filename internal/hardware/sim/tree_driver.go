package sim

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// driverLibraries lists the libraries of a data center driver with the number of their SONAME. libnvidia-sandboxutils
// is left out: the container toolkit would load it and query it for devices.
func driverLibraries() []struct{ name, soname string } {
	return []struct{ name, soname string }{
		{"libcuda.so", "1"}, {"libcudadebugger.so", "1"}, {"libnvcuvid.so", "1"}, {"libnvidia-allocator.so", "1"},
		{"libnvidia-cfg.so", "1"}, {"libnvidia-encode.so", "1"}, {"libnvidia-gpucomp.so", ""}, {"libnvidia-ml.so", "1"},
		{"libnvidia-nvvm.so", "4"}, {"libnvidia-opencl.so", "1"}, {"libnvidia-opticalflow.so", "1"}, {"libnvidia-ptxjitcompiler.so", "1"},
	}
}

// addDriverFiles adds the files that the driver's packages install.
func addDriverFiles(b *treeBuilder, hw *hardware, st *state) {
	folder := libraryFolder()
	for _, lib := range driverLibraries() {
		if lib.name == cudaLibrary && st.CUDA == cudaMissing {
			continue
		}
		full := lib.name + "." + hw.Driver
		soname := full
		if lib.soname != "" {
			soname = lib.name + "." + lib.soname
			b.link(path.Join(folder, soname), full)
			b.link(path.Join(folder, lib.name), soname)
		}
		if lib.name == libraryFile && addCode(b, hw, path.Join(folder, full), libraryFile) {
			continue
		}
		if lib.name == cudaLibrary {
			addCUDA(b, hw, st)
			continue
		}
		b.entries = append(b.entries, entry{Path: path.Join(folder, full), Mode: 0o755, Content: sharedObject(soname)})
	}
	for _, name := range []string{"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control",
		"nvidia-cuda-mps-server"} {
		if slices.Contains(programNames(), name) && addCode(b, hw, "usr/bin/"+name, programsFile) {
			continue
		}
		b.program("usr/bin/"+name, fmt.Sprintf("#!/bin/sh\n# %s of a simulated driver %s.\necho \"%s: simulated "+
			"driver %s\"\n", name, hw.Driver, name, hw.Driver))
	}
	for _, name := range []string{"gsp_ga10x.bin", "gsp_tu10x.bin"} {
		b.file(path.Join("lib/firmware/nvidia", hw.Driver, name), "simulated firmware "+name+" "+hw.Driver+"\n")
	}
	b.file("sys/module/nvidia_uvm/refcnt", "0\n")
}

// addModule adds the sysfs folder of the driver's module, which has another inode after each load. The folders of
// earlier loads stay, so that the file system does not reuse their inodes.
func addModule(b *treeBuilder, hw *hardware, st *state) {
	folder := func(load uint64) string { return fmt.Sprintf(".nvidia-load-%d", load) }
	for load := range st.DriverLoads + 1 {
		b.file(path.Join("sys/module", folder(load), "version"), moduleVersion(hw, st)+"\n")
	}
	if !st.DriverGone {
		b.link("sys/module/nvidia", folder(st.DriverLoads))
	}
}

// addDriverProc adds the files below /proc/driver.
func addDriverProc(b *treeBuilder, hw *hardware, st *state) {
	architecture := map[string]string{"arm64": "aarch64"}[runtime.GOARCH]
	if architecture == "" {
		architecture = "x86_64"
	}
	b.file("proc/driver/nvidia/version", fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  "+
		"Release Build  (simulated)\nGCC version:  simulated\n", architecture, moduleVersion(hw, st)))
	b.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: "+
		"438\nEnableMSI: 1\nEnableGpuFirmware: 18\n")
	for slot, gpu := range hw.GPUs {
		if !st.GPUs[slot].Removed {
			b.file(path.Join("proc/driver/nvidia/gpus", gpu.PCI, "information"), gpu.information(hw.Driver))
		}
	}
	if !hw.migCapable() {
		return
	}
	b.file("proc/driver/nvidia-caps/mig-minors", migMinors())
	capability := func(name string, minor int, mode int) {
		b.file(path.Join("proc/driver/nvidia/capabilities", name),
			fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode))
	}
	capability("mig/config", capConfig, 0o400)
	capability("mig/monitor", capMonitor, 0o444)
	eachCapability(hw, st, func(name string, minor int) { capability(name, minor, 0o444) })
}

func (c *gpuHardware) information(driver string) string {
	return fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nDMA "+
		"Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"+
		"Bus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
		c.Model.Name, 128+c.Minor, c.UUID, strings.ToLower(c.Model.VBIOS), c.PCI, c.Minor, driver)
}

func (hw *hardware) migCapable() bool {
	for i := range hw.GPUs {
		if hw.GPUs[i].Geometry != nil {
			return true
		}
	}
	return false
}

// The minor numbers of /dev/nvidia-caps: two fixed ones, then for each GPU 15 GPU instances of 8 compute instances, in
// the order of /proc/driver/nvidia-caps/mig-minors.
const (
	capConfig    = 1
	capMonitor   = 2
	capFirst     = 3
	capGPUs      = 32
	capInstances = 15
	capComputes  = 8
)

func giMinor(gpuMinor, gi int) int {
	return capFirst + (gpuMinor*capInstances+gi)*(1+capComputes)
}

func ciMinor(gpuMinor, gi, ci int) int { return giMinor(gpuMinor, gi) + 1 + ci }

// migMinors is the same on every machine, so it is computed once.
var migMinors = sync.OnceValue(func() string {
	var text strings.Builder
	fmt.Fprintf(&text, "config %d\nmonitor %d\n", capConfig, capMonitor)
	for gpu := range capGPUs {
		for gi := range capInstances {
			fmt.Fprintf(&text, "gpu%d/gi%d/access %d\n", gpu, gi, giMinor(gpu, gi))
			for ci := range capComputes {
				fmt.Fprintf(&text, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, ciMinor(gpu, gi, ci))
			}
		}
	}
	return text.String()
})

// eachCapability calls back for each existing MIG instance with its path below capabilities.
func eachCapability(hw *hardware, st *state, call func(name string, minor int)) {
	for slot := range hw.GPUs {
		if st.GPUs[slot].Removed {
			continue
		}
		minor := hw.GPUs[slot].Minor
		for _, gi := range st.GPUs[slot].Instances {
			folder := fmt.Sprintf("gpu%d/mig/gi%d", minor, gi.ID)
			call(folder+"/access", giMinor(minor, gi.ID))
			for _, ci := range gi.Compute {
				call(fmt.Sprintf("%s/ci%d/access", folder, ci.ID), ciMinor(minor, gi.ID, ci.ID))
			}
		}
	}
}

// addDeviceNodes adds /dev, with the modes that nvidia-modprobe and udev set.
func addDeviceNodes(b *treeBuilder, hw *hardware, st *state) {
	b.node("dev/nvidiactl", 0o666, hw.Majors.NVIDIA, 255)
	b.node("dev/nvidia-modeset", 0o666, hw.Majors.NVIDIA, 254)
	b.node("dev/nvidia-uvm", 0o666, hw.Majors.UVM, 0)
	b.node("dev/nvidia-uvm-tools", 0o666, hw.Majors.UVM, 1)
	for slot, gpu := range hw.GPUs {
		if st.GPUs[slot].Removed {
			continue
		}
		b.node(fmt.Sprintf("dev/nvidia%d", gpu.Minor), 0o666, hw.Majors.NVIDIA, uint32(gpu.Minor))
		b.node(fmt.Sprintf("dev/dri/card%d", gpu.Card), 0o660, hw.Majors.DRM, uint32(gpu.Card))
		b.node(fmt.Sprintf("dev/dri/renderD%d", gpu.Render), 0o666, hw.Majors.DRM, uint32(gpu.Render))
		b.link(fmt.Sprintf("dev/dri/by-path/pci-%s-card", gpu.PCI), fmt.Sprintf("../card%d", gpu.Card))
		b.link(fmt.Sprintf("dev/dri/by-path/pci-%s-render", gpu.PCI), fmt.Sprintf("../renderD%d", gpu.Render))
	}
	if !hw.migCapable() {
		return
	}
	b.node(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capConfig), 0o400, hw.Majors.Caps, capConfig)
	b.node(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capMonitor), 0o444, hw.Majors.Caps, capMonitor)
	eachCapability(hw, st, func(_ string, minor int) {
		b.node(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor), 0o444, hw.Majors.Caps, uint32(minor))
	})
}
