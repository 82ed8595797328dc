package nvidia

import "github.com/berth-gpu/berth/internal/core/gpu"

// Traits returns the names of NVIDIA.
func Traits() gpu.Traits {
	return gpu.Traits{
		Name:           gpu.NVIDIA,
		Title:          "NVIDIA",
		Library:        libraryName,
		ResourcePrefix: "nvidia.com",
		UUIDPrefix:     "GPU-", PartitionPrefix: "MIG-",
		VisibleDevices: []string{"NVIDIA_VISIBLE_DEVICES"},
		VisibleMounts:  "/var/run/nvidia-container-devices",
		Features:       gpu.FeatureVariables{GDS: "NVIDIA_GDS", GDRCopy: "NVIDIA_GDRCOPY", MOFED: "NVIDIA_MOFED", IMEXChannels: "NVIDIA_IMEX_CHANNELS"},
		Environment:    []string{"NVIDIA_", "CUDA_"},
		Assigning:      []string{"NVIDIA_", "CUDA_MPS_", "CUDA_VISIBLE_DEVICES"},
		Mounts:         []string{"nvidia", "libcuda", "/mps"},
		NodeFolders:    []string{"nvidia-caps"},
		GPUMajor:       195,
		ControlMinor:   240,
		IMEXNodes:      "/dev/nvidia-caps-imex-channels/channel",
		NodePrefixes:   []string{"/dev/nvidia"},
		Majors:         []string{"nvidia", "nvidia-frontend", uvmDriver, capsDriver},
		CodeKinds:      []string{"xid", "sxid"},
		TimeoutCode:    codeTimeout,
		DCGM:           true,
	}
}

// Traits returns the names of NVIDIA.
func (a *Adapter) Traits() gpu.Traits { return Traits() }
