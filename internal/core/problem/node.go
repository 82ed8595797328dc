package problem

// nodeProblems are the problems of a node's driver and CDI specs.
func nodeProblems() []Problem {
	return []Problem{
		{
			Code: "DEVICE_NODE_MISSING", Severity: Error, Area: AreaDriver, Title: "a device node of the driver is missing",
			Meaning: "Programs and containers cannot open the device. Without /dev/nvidiactl or /dev/nvidia-uvm no CUDA program can start in any pod of the node; after a boot these nodes are not created unless a display or a CUDA program on the host does. The agent makes what is missing where it may; control nodes not where the driver's parameter ModifyDeviceFiles is 0.",
			Fix:     "See the message: load the module (modprobe nvidia-uvm), make the node (nvidia-modprobe -u -c MINOR on the host), or run the agent privileged with the host's /dev below its host root.",
			Seen:    seenNode + ", or berth doctor on the node",
		},
		{
			Code: "DRIVER_MISSING", Severity: Error, Area: AreaDriver, Title: "no NVIDIA driver answers",
			Meaning: "The library libnvidia-ml was not found, or the kernel module behind it does not answer, so no GPU is advertised.",
			Fix:     "Install or load the driver, or correct --driver-root. It is found without a restart; run berth doctor on the node to see what is missing.",
			Seen:    seenNode,
		},
		{
			Code: "SCAN_FAILED", Severity: Error, Area: AreaDriver, Title: "the hardware could not be scanned",
			Meaning: "The last scan of the hardware failed; the previous result is shown.",
			Fix:     "See the error in the message. The scan is retried.",
			Seen:    seenNode,
		},
		{
			Code: "SCAN_REFUSED", Severity: Error, Area: AreaDriver, Title: "the result of a scan cannot be true",
			Meaning: "What the driver of a vendor reported contradicts itself or the GPUs of another vendor: a UUID that is empty, twice there or another vendor's, device nodes that are not the vendor's, too many GPUs. Nothing of it is used; what is shown of that vendor's GPUs is from before. The GPUs of other vendors are not affected.",
			Fix:     "See the message for what was found. Report it with the agent's log; the scan is tried again by itself.",
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
			Meaning: "Containers get their device nodes and the driver's files, but no library links and no refreshed library cache, so programs may not find libcuda.",
			Fix:     "Check that the agent may write its hook directory on the host (hookDir), and that the file there can be executed.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_IMEX_MISSING", Severity: Warning, Area: AreaCDI, Title: "an IMEX channel that is configured does not exist",
			Meaning: "Containers run without it.",
			Fix:     "Make it with nvidia-modprobe -c 0, or load the driver with NVreg_CreateImexChannel0=1, and check that nvidia-imex runs.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_IMEX_REQUIRED", Severity: Error, Area: AreaCDI, Title: "an IMEX channel that is required does not exist",
			Meaning: "Programs that share memory between nodes will fail.",
			Fix:     "Make it with nvidia-modprobe -c 0, or load the driver with NVreg_CreateImexChannel0=1, and check that nvidia-imex runs.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_LDCONFIG_MISSING", Severity: Warning, Area: AreaCDI, Title: "the host has no ldconfig",
			Meaning: "The library cache in GPU containers is not refreshed, so programs in them may not find libcuda.",
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
			Meaning: "The device is left out of the CDI spec, and containers cannot ask for it.",
			Fix:     "Report a bug, with the UUID in the message.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_NAME_TAKEN", Severity: Error, Area: AreaCDI, Title: "two devices have one name",
			Meaning: "The second is left out of the CDI spec: a name must mean one device.",
			Fix:     "Check which devices the message names; two GPUs with one UUID are a defect of the hardware or of its virtualisation.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_NODE_MISSING", Severity: Error, Area: AreaCDI, Title: "a device node is not on the host",
			Meaning: "The node is left out of the CDI spec, so containers with that device cannot open it.",
			Fix:     "Make the nodes: nvidia-modprobe -c MINOR, or nvidia-smi on the host; for MIG devices nvidia-modprobe -f CAPABILITY-FILE.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_PATH_MISSING", Severity: Warning, Area: AreaCDI, Title: "a driver file is not on the host",
			Meaning: "The file is left out of the CDI spec; what needs it does not work in containers.",
			Fix:     "Install the driver's package that has it, or correct --driver-root.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_SPEC_KEPT", Severity: Error, Area: AreaCDI, Title: "the CDI spec could not be written",
			Meaning: "An older one stays in force, which may name devices that are gone or lack new ones.",
			Fix:     "See the error in the message: the CDI directory must be writable and its disk not full. When a file call hangs, look for a network file system among the directories that it names.",
			Seen:    seenNode,
		},
		{
			Code: "CDI_SPEC_UNREADABLE", Severity: Error, Area: AreaCDI, Title: "the CDI spec cannot be read back",
			Meaning: "The agent does not know which devices a runtime can inject, and advertises none of those.",
			Fix:     "Delete the file that the message names; the agent writes it again.",
			Seen:    seenNode,
		},
		{
			Code: "DEVICE_CONFLICT", Severity: Error, Area: AreaKubelet, Title: "more than one pod uses a device",
			Meaning: "Two pods have a device that only one may have, most often because the kubelet lost its checkpoint, or because a container with all devices runs (NVIDIA_VISIBLE_DEVICES=all, privileged).",
			Fix:     "See the pods in the message and delete the one that should not have it.",
			Seen:    seenNode,
		},
		{
			Code: "CHECKPOINT_UNREADABLE", Severity: Error, Area: AreaKubelet, Title: "the kubelet's checkpoint cannot be read",
			Meaning: "The agent cannot read which pods hold which devices, and uses the last state that it read.",
			Fix:     "Check that the agent sees the kubelet's directory (--kubelet-dir), and that the file is complete.",
			Seen:    seenNode,
		},
		{
			Code: "PROCESSES_UNREADABLE", Severity: Warning, Area: AreaKubelet, Title: "the node's containers cannot be read",
			Meaning: "Containers that still run after the kubelet has forgotten them cannot be found, so their devices are not withheld from other pods.",
			Fix:     "Give the agent the host's PID namespace, cgroups (/sys/fs/cgroup) and the runtime's state directory, as deploy/agent.yaml does.",
			Seen:    seenNode,
		},
		{
			Code: "CONTAINER_UNMARKED", Severity: Warning, Area: AreaKubelet, Title: "it is not known which devices a running container was given",
			Meaning: "A container whose pod requests GPUs has the device nodes of some, and neither the kubelet's checkpoint nor the container's mounts say that Berth gave them to it: " +
				"another device plugin did, or the checkpoint and the ledger were both lost. Those GPUs are allocated to no one else until it ends.",
			Fix:  "Delete the pod in the message when it may be replaced; check that no other device plugin serves these GPUs.",
			Seen: seenNode,
		},
		{
			Code: "PODS_UNKNOWN", Severity: Warning, Area: AreaKubelet, Title: "the pods of the node cannot be watched",
			Meaning: "The API server does not answer, or refuses, the agent's watch of this node's pods. A pod then counts as ended when its cgroup is gone; a device whose container is still running stays withheld.",
			Fix:     "See the error in the message; the agent needs the right to get, list and watch pods, as deploy/agent.yaml gives it.",
			Seen:    seenNode,
		},
	}
}
