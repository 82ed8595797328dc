package sim

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// The faults of libcuda.so.1 besides CALL=RESULT, the CUresult that a call returns.
const (
	// cudaWrong makes the sum of two vectors wrong.
	cudaWrong = "wrong"
	// cudaMissing leaves the library out of the driver's files.
	cudaMissing = "missing"
	// cudaCount changes the number of devices, cudaMajor is the major version of the kernel module, cudaHang a call that never returns.
	cudaCount, cudaMajor, cudaHang = "count", "major", "hang"
)

// cudaLibrary is the library's name without its version.
const cudaLibrary = "libcuda.so"

// cudaEnd begins the last line of the library's file: 14 characters, a tab, and the length of the lines before it in 8 digits.
const cudaEnd = "berth-sim-cuda"

// cudaCalls lists the simulated calls; those from the fourth on concern one device.
func cudaCalls() []string {
	return []string{
		"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName", "cuCtxCreate_v2",
		"cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuCtxSynchronize",
		"cuMemcpyDtoH_v2", "cuMemFree_v2", "cuModuleUnload", "cuCtxDestroy_v2",
	}
}

// cudaCallsOfMachine is how many of them concern no device.
const cudaCallsOfMachine = 3

// checkCUDA returns an error, which names the valid ones, for a fault of libcuda.so.1 that does not exist; device is true for a fault of
// one GPU.
func checkCUDA(fault string, device bool) error {
	if fault == "" {
		return nil
	}
	calls := cudaCalls()
	valid := "CALL=RESULT such as cuInit=999, count=-1, major=N, wrong, hang=CALL, missing"
	if device {
		calls, valid = calls[cudaCallsOfMachine:], "CALL=RESULT such as cuCtxCreate_v2=46, wrong, hang=CALL for one GPU"
	}
	kind, value, _ := strings.Cut(fault, "=")
	call := kind
	if kind == cudaHang {
		call = value
	}
	if known := slices.Contains(calls, call); known && kind == cudaHang || known && positive(value) || !known && otherFault(fault, device) {
		return nil
	}
	if near := spelling.Nearest(call, calls); near != "" && near != call {
		return fmt.Errorf("fault of libcuda %q: no such call; did you mean %q? (want %s)", fault, near, valid)
	}
	return fmt.Errorf("fault of libcuda %q: want %s; the calls are %s", fault, valid, strings.Join(calls, ", "))
}

func positive(text string) bool {
	number, err := strconv.Atoi(text)
	return err == nil && number > 0
}

// otherFault reports whether a fault that concerns no call exists.
func otherFault(fault string, device bool) bool {
	if fault == cudaWrong || device {
		return fault == cudaWrong
	}
	kind, value, _ := strings.Cut(fault, "=")
	switch kind {
	case cudaCount:
		return positive(strings.TrimPrefix(value, "-"))
	case cudaMajor:
		return positive(value)
	}
	return fault == cudaMissing
}

// moduleVersion is the version of the kernel module, which a fault makes another one than that of the driver's files.
func moduleVersion(hw *hardware, st *state) string {
	if major, ok := strings.CutPrefix(st.CUDA, cudaMajor+"="); ok {
		_, rest, _ := strings.Cut(hw.Driver, ".")
		return major + "." + rest
	}
	return hw.Driver
}

// addCUDA adds the library that simulates CUDA's driver API, or the one that only loads when there is none with code.
func addCUDA(b *treeBuilder, hw *hardware, st *state) {
	full := cudaLibrary + "." + hw.Driver
	file := entry{Path: path.Join(libraryFolder(), full), Mode: 0o755}
	if hw.Computes {
		file.Base, file.Content = path.Join(driverFolder, hw.Files, cudaLibrary), cudaMachine(hw, st)
	} else {
		file.Content = sharedObject(cudaLibrary + ".1")
	}
	b.entries = append(b.entries, file)
}

// cudaMachine describes the machine in the form that libcuda/libcuda.c reads at the end of its own file.
func cudaMachine(hw *hardware, st *state) []byte {
	var text strings.Builder
	fmt.Fprintf(&text, "\nlibrary\t%s\t%d\nmodule\t%s\nfault\t%s\n", hw.Driver, hw.CUDA, moduleVersion(hw, st), st.CUDA)
	for slot := range hw.GPUs {
		gpu, c := &hw.GPUs[slot], &st.GPUs[slot]
		fault := c.CUDA
		if fault == "" && c.Lost {
			fault = "cuCtxCreate_v2=999"
		}
		if !c.MIGEnabled {
			fmt.Fprintf(&text, "gpu\t%d\t-\t%s\t%s\t%s\n", gpu.Minor, gpu.UUID, gpu.Model.Name, fault)
			continue
		}
		for _, m := range migDevices(gpu, c) {
			fmt.Fprintf(&text, "mig\t%d\t%d\t%s\t%s MIG %s\t%s\n", gpu.Minor, ciMinor(gpu.Minor, m.gi.ID, m.ci.ID), m.uuid, gpu.Model.Name, m.name(), fault)
		}
	}
	return fmt.Appendf(nil, "%s%s\t%08d\n", text.String(), cudaEnd, text.Len())
}
