package nvidia

import "github.com/berth-gpu/berth/internal/core/gpu"

// Traits returns the names of NVIDIA.
func Traits() gpu.Traits {
	return gpu.Traits{
		Name:           gpu.NVIDIA,
		Title:          "NVIDIA",
		Library:        libraryName,
		ResourcePrefix: "nvidia.com",
		VisibleDevices: []string{"NVIDIA_VISIBLE_DEVICES"},
		NodePrefixes:   []string{"/dev/nvidia"},
		Majors:         []string{"nvidia", "nvidia-frontend", uvmDriver, capsDriver},
		CodeKinds:      []string{"xid", "sxid"},
	}
}

// Traits returns the names of NVIDIA.
func (a *Adapter) Traits() gpu.Traits { return Traits() }
