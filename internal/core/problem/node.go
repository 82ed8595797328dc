package problem

// nodeProblems are the problems of a node's driver and CDI specs.
func nodeProblems() []Problem {
	return []Problem{
		{
			Code: "DEVICE_NODE_MISSING", Severity: Error, Area: AreaDriver, Title: "a device node of the driver is missing",
			Meaning: "Programs and containers cannot open the device. Without /dev/nvidiactl and /dev/nvidia-uvm no CUDA program can start in any pod of the node. After a boot these device nodes do not exist until a display or a CUDA program on the host creates them. The agent creates missing device nodes where it has the permission, except control nodes while the driver's parameter ModifyDeviceFiles is 0.",
			Fix:     "The message says which of these applies: load the module (modprobe nvidia-uvm), create the device node on the host (nvidia-modprobe -u -c MINOR), or run the agent privileged and with the host's root file system, as in the chart.",
			Seen:    seenNode + ", or berth doctor on the node",
		},
		{
			Code: "DRIVER_MISSING", Severity: Error, Area: AreaDriver, Title: "no NVIDIA driver answers",
			Meaning: "The library libnvidia-ml was not found, or the kernel module behind it does not answer, so no GPU is advertised. A node that never had a GPU, and has none on its PCI bus, does not have this problem.",
			Fix:     "Run berth doctor on the node to see what is missing. Install or load the driver, or correct --driver-root. The agent finds the driver without a restart.",
			Seen:    seenNode,
		},
		{
			Code: "SCAN_FAILED", Severity: Error, Area: AreaDriver, Title: "the hardware could not be scanned",
			Meaning: "The last scan of the hardware failed; the result of the previous scan is used.",
			Fix:     "See the error in the message. The agent repeats the scan at its next poll.",
			Seen:    seenNode,
		},
		{
			Code: "SCAN_REFUSED", Severity: Error, Area: AreaDriver, Title: "the result of a scan cannot be true",
			Meaning: "What the driver of a vendor reported contradicts itself or the GPUs of another vendor: the UUID of another vendor's GPU, device nodes that are not the vendor's, or too many GPUs. The result is not used, and that vendor's GPUs are shown as last scanned. The GPUs of other vendors are not affected.",
			Fix:     "The message says what was found. Report it as a bug, with the agent's log. The agent repeats the scan at its next poll.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_GDRCOPY_MISSING", Severity: Warning, Area: AreaCDI, Title: "GDRCopy is on and the host has no gdrdrv",
			Meaning: "Containers get their GPUs without /dev/gdrdrv.",
			Fix:     "Load the kernel module gdrdrv (package gdrdrv-dkms), or set gdrcopy to false.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_GDS_MISSING", Severity: Warning, Area: AreaCDI, Title: "GPUDirect Storage is on and the host has no nvidia-fs",
			Meaning: "Containers get their GPUs without /dev/nvidia-fs*.",
			Fix:     "Load the kernel module nvidia-fs (package nvidia-gds), or set gds to false.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_HOOK_MISSING", Severity: Warning, Area: AreaCDI, Title: "the CDI hook program is not on the host",
			Meaning: "Containers get their device nodes and the driver's files, but no links to the libraries and no updated library cache, so programs may not find libcuda.",
			Fix:     "Check that the agent may write its hook directory on the host (hookDir), and that the file there can be executed. The agent installs a program that was removed again, and tries that every minute.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_IMEX_MISSING", Severity: Warning, Area: AreaCDI, Title: "an IMEX channel that is configured does not exist",
			Meaning: "Containers run without it.",
			Fix:     "Load the kernel module nvidia with the parameter NVreg_CreateImexChannel0=1, or create the device node: mknod /dev/nvidia-caps-imex-channels/channel0 c MAJOR 0, with the number that /proc/devices lists for nvidia-caps-imex-channels. Check that nvidia-imex runs.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_IMEX_REQUIRED", Severity: Error, Area: AreaCDI, Title: "an IMEX channel that is required does not exist",
			Meaning: "Programs that share memory between nodes will fail.",
			Fix:     "Load the kernel module nvidia with the parameter NVreg_CreateImexChannel0=1, or create the device node: mknod /dev/nvidia-caps-imex-channels/channel0 c MAJOR 0, with the number that /proc/devices lists for nvidia-caps-imex-channels. Check that nvidia-imex runs.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_LDCONFIG_MISSING", Severity: Warning, Area: AreaCDI, Title: "the host has no ldconfig",
			Meaning: "The library cache in containers with a GPU is not updated, so their programs may not find libcuda.",
			Fix:     "Install ldconfig (package glibc or libc-bin) on the host.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_MOFED_MISSING", Severity: Warning, Area: AreaCDI, Title: "MOFED is on and the host has no InfiniBand devices",
			Meaning: "Containers get their GPUs without /dev/infiniband.",
			Fix:     "Load the kernel modules ib_uverbs and rdma_cm (MLNX_OFED or DOCA-OFED), or set mofed to false.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_MPS_MISSING", Severity: Error, Area: AreaCDI, Title: "the directory of a GPU's MPS daemon does not exist",
			Meaning: "No container can join the GPU's MPS daemon.",
			Fix:     "Check that berth-agent mps runs on the node and shares its directory with the agent.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_NAME_INVALID", Severity: Error, Area: AreaCDI, Title: "a device's name is not valid in CDI",
			Meaning: "The device is left out of the CDI spec and cannot be allocated.",
			Fix:     "Report this as a bug, with the UUID in the message.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_NAME_TAKEN", Severity: Error, Area: AreaCDI, Title: "two devices have the same CDI name",
			Meaning: "A CDI name must identify one device, so the second device is left out of the CDI spec.",
			Fix:     "Check which devices the message names; two GPUs with the same UUID are a fault of the hardware or of its virtualization.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_NODE_MISSING", Severity: Error, Area: AreaCDI, Title: "a device node is not on the host",
			Meaning: "The device node is left out of the CDI spec, so containers with that device cannot open it.",
			Fix:     "Create the device nodes on the host: nvidia-modprobe -c MINOR, or run nvidia-smi; for MIG devices: nvidia-modprobe -f CAPABILITY-FILE.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_PATH_MISSING", Severity: Warning, Area: AreaCDI, Title: "a driver file is not on the host",
			Meaning: "The file is left out of the CDI spec, so programs in containers that need it do not work.",
			Fix:     "Install the package of the driver that contains the file, or correct --driver-root.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_SPEC_KEPT", Severity: Error, Area: AreaCDI, Title: "the CDI spec could not be written",
			Meaning: "The previous CDI spec stays in use. It may list devices that are gone, or lack new ones.",
			Fix:     "See the error in the message: the CDI directory must be writable, and its disk must have free space. If the message says that a file operation hangs, check whether the directory that it names is on a network file system.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_SPEC_UNREADABLE", Severity: Error, Area: AreaCDI, Title: "the CDI spec cannot be read back",
			Meaning: "The agent cannot determine which devices the container runtime can inject, and does not advertise those devices.",
			Fix:     "Delete the file that the message names; the agent writes it again.",
			Seen:    seenNode,
		},
		{
			Code: "DEVICE_CONFLICT", Severity: Error, Area: AreaKubelet, Title: "several pods use a device that only one may use",
			Meaning: "Several pods use a device that is allocated to one container at a time, or a container uses a device of a ResourceClaim that is not reserved for its pod. The usual reasons are a kubelet that lost its checkpoint, and a container that can use all devices (privileged, or with NVIDIA_VISIBLE_DEVICES=all).",
			Fix:     "The message names the pods. Delete the one that should not have the device.",
			Seen:    seenNode,
		},
		{
			Code: "CHECKPOINT_UNREADABLE", Severity: Error, Area: AreaKubelet, Title: "the kubelet's checkpoint cannot be read",
			Meaning: "The agent cannot read which pods hold which devices, and uses what it read last.",
			Fix:     "Check that --kubelet-dir is the kubelet's root directory, that the agent's pod mounts it, and that the file kubelet_internal_checkpoint in its directory device-plugins is complete.",
			Seen:    seenNode,
		},
		{
			Code: "KUBELET_DIR_MISSING", Severity: Error, Area: AreaKubelet, Title: "the kubelet's device plugin directory does not exist",
			Meaning: "No device plugin can register here. The kubelet creates the directory when it starts; the agent waits for it, and then registers without a restart.",
			Fix:     "Check that a kubelet runs. If its root directory is not /var/lib/kubelet, set --kubelet-dir.",
			Seen:    seenNode,
		},
		{
			Code: "PROCESSES_UNREADABLE", Severity: Warning, Area: AreaKubelet, Title: "the node's containers cannot be read",
			Meaning: "The agent cannot find containers that still run although the kubelet no longer knows them, so it cannot withhold their devices from other pods.",
			Fix:     "Give the agent the host's PID namespace, cgroups (/sys/fs/cgroup) and the runtime's state directory, as the chart does.",
			Seen:    seenNode,
		},
		{
			Code: "CONTAINER_UNMARKED", Severity: Warning, Area: AreaKubelet, Title: "the devices of a running container are not recorded",
			Meaning: "A container whose pod requests GPUs can use some, and neither the kubelet's checkpoint nor the container's mounts show that Berth allocated them: " +
				"another device plugin did, or both the checkpoint and the ledger were lost. These GPUs are not allocated to other pods until the container ends.",
			Fix:  "Check that no other device plugin serves these GPUs. Delete the pod that the message names when its work allows it.",
			Seen: seenNode,
		},
		{
			Code: "PODS_UNKNOWN", Severity: Warning, Area: AreaKubelet, Title: "the pods of the node cannot be watched",
			Meaning: "The API server does not answer the agent's watch of this node's pods, or refuses it. Until it answers, the agent considers a pod ended when its cgroup no longer exists; the device of a container that still runs stays blocked.",
			Fix:     "See the error in the message. The agent needs the permission to get, list and watch pods, which the chart grants.",
			Seen:    seenNode,
		},
	}
}
