package nvidia

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// actionError is the error of an action that NVML refused. It wraps the return code, such as nvml.ERROR_IN_USE.
type actionError struct {
	text string
	ret  nvml.Return
}

func (r *actionError) Error() string { return r.text }
func (r *actionError) Unwrap() error { return r.ret }

// fail returns the error of a call that was refused. advice is the fix for that call; codes that mean the same for every call
// have a fix of their own.
func (a *action) fail(call string, ret nvml.Return, advice string) error {
	switch ret {
	case nvml.ERROR_NO_PERMISSION:
		advice = "it needs root on the node: run the agent privileged"
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		advice = "reset the GPU or reboot the node"
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND:
		advice = "load the NVIDIA driver"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		advice = "the driver was upgraded while it ran; reboot the node"
	}
	if advice != "" {
		advice = "; " + advice
	}
	return &actionError{text: fmt.Sprintf("%s of GPU %s: %s returned %s%s", a.what, a.uuid, call, codeName(ret), advice), ret: ret}
}

// allInstances stands for all GPU instances of a GPU.
const allInstances = -1

// users returns the processes that NVML lists for a GPU instance or the GPU, as the end of a sentence; empty when it lists
// none.
func (a *action) users(gi int) string {
	processes, ret := a.device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return ""
	}
	var pids []string
	slices.SortFunc(processes, func(x, y nvml.ProcessInfo) int { return int(x.Pid) - int(y.Pid) })
	for _, p := range processes {
		if gi == allInstances || p.GpuInstanceId == uint32(gi) {
			pids = append(pids, fmt.Sprint(p.Pid))
		}
	}
	if pids = slices.Compact(pids); len(pids) == 0 {
		return ""
	}
	return " (process " + strings.Join(pids, ", ") + ")"
}

// createAdvice returns the fix for an instance that could not be created.
func (a *action) createAdvice(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED:
		return "turn MIG on first"
	case nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_IN_USE:
		return "its memory slices or too many compute slices are taken: there are " + a.layout()
	}
	return ""
}

// layout lists the GPU instances of the GPU by their placement.
func (a *action) layout() string {
	type place struct {
		start int
		text  string
	}
	var places []place
	for gi := range maxGPUInstances {
		instance, ret := a.device.GetGpuInstanceById(gi)
		if ret != nvml.SUCCESS {
			continue
		}
		if info, ret := instance.GetInfo(); ret == nvml.SUCCESS {
			at := info.Placement
			places = append(places, place{int(at.Start), fmt.Sprintf("GPU instance %d at %d+%d", gi, at.Start, at.Size)})
		}
	}
	if len(places) == 0 {
		return "no GPU instances that NVML lists"
	}
	slices.SortFunc(places, func(x, y place) int { return x.start - y.start })
	var texts []string
	for _, p := range places {
		texts = append(texts, p.text)
	}
	return strings.Join(texts, ", ")
}
