package nvidia

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// codeName returns the name of a return code in nvml.h. NVML's own text needs the library to be loaded and differs between
// drivers.
func codeName(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_UNINITIALIZED:
		return "UNINITIALIZED"
	case nvml.ERROR_INVALID_ARGUMENT:
		return "INVALID_ARGUMENT"
	case nvml.ERROR_NOT_SUPPORTED:
		return "NOT_SUPPORTED"
	case nvml.ERROR_NO_PERMISSION:
		return "NO_PERMISSION"
	case nvml.ERROR_NOT_FOUND:
		return "NOT_FOUND"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "DRIVER_NOT_LOADED"
	case nvml.ERROR_TIMEOUT:
		return "TIMEOUT"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "LIBRARY_NOT_FOUND"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "FUNCTION_NOT_FOUND"
	case nvml.ERROR_GPU_IS_LOST:
		return "GPU_IS_LOST"
	case nvml.ERROR_RESET_REQUIRED:
		return "RESET_REQUIRED"
	case nvml.ERROR_OPERATING_SYSTEM:
		return "OPERATING_SYSTEM"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "LIB_RM_VERSION_MISMATCH"
	case nvml.ERROR_IN_USE:
		return "IN_USE"
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return "INSUFFICIENT_RESOURCES"
	case nvml.ERROR_INVALID_STATE:
		return "INVALID_STATE"
	case nvml.ERROR_GPU_NOT_FOUND:
		return "GPU_NOT_FOUND"
	case nvml.ERROR_UNKNOWN:
		return "UNKNOWN"
	}
	return fmt.Sprintf("NVML error %d", int(ret))
}
