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
		Files:          driverFiles(),
	}
}

// driverFiles returns the files of NVIDIA's driver. 195 is the major number that Linux assigns to it for /dev/nvidiaN, nvidiactl and
// nvidia-modeset.
func driverFiles() gpu.DriverFiles {
	own := gpu.DriverNode{Name: "nvidia", Drivers: []string{"nvidia", "nvidia-frontend"}, Major: 195}
	return gpu.DriverFiles{
		Proc:      "driver/nvidia",
		Libraries: []string{libraryName, "libcuda.so.1"},
		LibraryFolders: []string{
			"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
			"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
			"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current",
			"usr/lib", "usr/local/nvidia/lib64", "run/opengl-driver/lib",
			"opt/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64", "usr/lib/nvidia", "usr/lib/nvidia/tesla",
		},
		Node: own,
		Nodes: []gpu.DriverNode{
			{Name: "nvidiactl", Drivers: own.Drivers, Major: own.Major, Minor: 255},
			{Name: "nvidia-modeset", Drivers: own.Drivers, Major: own.Major, Minor: 254, Optional: true},
			{Name: "nvidia-uvm", Drivers: []string{uvmDriver}},
			{Name: "nvidia-uvm-tools", Drivers: []string{uvmDriver}, Minor: 1, Optional: true},
		},
		Capability: gpu.DriverNode{Name: "nvidia-caps/nvidia-cap", Drivers: []string{capsDriver}},
		Runtime: gpu.ContainerRuntime{
			Program: "nvidia-container-runtime", Prefix: "nvidia", Config: "/etc/nvidia-container-runtime/config.toml",
			Refuses: "accept-nvidia-visible-devices-envvar-when-unprivileged", DefaultCode: "RUNTIME_NVIDIA_DEFAULT",
		},
	}
}

// Traits returns the names of NVIDIA.
func (a *Adapter) Traits() gpu.Traits { return Traits() }
