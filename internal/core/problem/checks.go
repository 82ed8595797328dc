package problem

// checkProblems are the problems that only berth doctor finds.
func checkProblems() []Problem {
	return []Problem{
		{
			Code: "DRIVER_NOT_LOADED", Severity: Error, Area: AreaDriver, Title: "the kernel module nvidia is not loaded",
			Meaning: "There is no /proc/driver/nvidia/version, so no program can use a GPU.",
			Fix:     "Load it (modprobe nvidia), or install the driver; see dmesg if it does not load.",
			Seen:    seenDoctor,
		},
		{
			Code: "DRIVER_LIBRARY_MISSING", Severity: Error, Area: AreaDriver, Title: "a library of the driver was not found",
			Meaning: "Without libnvidia-ml no GPU is found; without libcuda no program in a container can compute.",
			Fix:     "Install the driver's user space, or give the directory that it is in with --driver-root (a driver container: /run/nvidia/driver).",
			Seen:    seenDoctor,
		},
		{
			Code: "DRIVER_LIBRARY_VERSION", Severity: Error, Area: AreaDriver, Title: "library and kernel module are of different versions",
			Meaning: "The driver refuses such a library. The usual reason is a driver upgrade while the old module stays loaded.",
			Fix:     "Unload and load the module again, or reboot the node; then restart the agent.",
			Seen:    seenDoctor,
		},
		{
			Code: "DEVICE_NODE_WRONG", Severity: Error, Area: AreaDriver, Title: "a device node has the wrong numbers",
			Meaning: "The node opens another device or none. A node that was made before the module was loaded again looks like this. The agent makes such nodes of the driver again where it may.",
			Fix:     "Check that the agent runs privileged with the host's /dev below its host root; or delete the node and make it again: nvidia-modprobe -c MINOR -u.",
			Seen:    seenDoctor,
		},
		{
			Code: "DEV_CHAR_LINK_MISSING", Severity: Warning, Area: AreaDriver, Title: "a device node has no link in /dev/char",
			Meaning: "With systemd cgroups, systemctl daemon-reload takes a device away from running containers that has no link /dev/char/MAJOR:MINOR: under runc 1.1.3 to 1.1.6, under systemd before 240, and where devices are given without CDI (deviceListStrategy envvar or volume-mounts). Elsewhere the links are not needed and not asked for.",
			Fix:     "Make the links: nvidia-ctk system create-dev-char-symlinks --create-all, or a udev rule of the driver's package.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_NVIDIA_DEFAULT", Severity: Warning, Area: AreaCDI, Title: "the NVIDIA runtime is the default runtime",
			Meaning: "Every container of the node runs under it, and it honours the environment: an image or a pod with NVIDIA_VISIBLE_DEVICES=all opens every GPU, whichever pod holds it, without requesting one.",
			Fix:     "Make runc the default runtime again; Berth needs no other one. Or set accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/nvidia-container-runtime/config.toml.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_MISSING", Severity: Error, Area: AreaCDI, Title: "there is no CDI spec of Berth",
			Meaning: "The runtime cannot inject the devices that the agent answers with.",
			Fix:     "Check that the agent runs and may write /var/run/cdi.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_INVALID", Severity: Error, Area: AreaCDI, Title: "a CDI spec cannot be parsed",
			Meaning: "Runtimes ignore it, or refuse every device of its vendor.",
			Fix:     "Delete it; the program that wrote it creates it again. Berth's spec is k8s.berth.dev-gpu.json.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_PATH", Severity: Error, Area: AreaCDI, Title: "a CDI spec names a file that does not exist",
			Meaning: "Containers with the device do not start.",
			Fix:     "Have the spec written again: restart the agent for Berth's, nvidia-ctk cdi generate for NVIDIA's.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_NUMBERS", Severity: Error, Area: AreaCDI, Title: "a CDI spec has other numbers than the device node",
			Meaning: "Containers get a node that opens another device or none. The spec is from before the module was loaded again.",
			Fix:     "Have the spec written again: restart the agent for Berth's, nvidia-ctk cdi generate for NVIDIA's.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_DEVICE_TWICE", Severity: Error, Area: AreaCDI, Title: "two CDI specs of one directory have the same device",
			Meaning: "Runtimes resolve the name by neither.",
			Fix:     "Delete the file that is left over.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_CONFIG_INVALID", Severity: Error, Area: AreaRuntime, Title: "the runtime's configuration cannot be parsed",
			Meaning: "The runtime will not start with it, or already runs with an older one.",
			Fix:     "Correct the line that the evidence names.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_CDI_OFF", Severity: Error, Area: AreaRuntime, Title: "the runtime does not inject CDI devices",
			Meaning: "Containers get no GPU although the kubelet gave them one.",
			Fix:     "Set enable_cdi = true in the CRI section of containerd's configuration and restart containerd; or let the agent pass device nodes (deviceListStrategy, passDeviceSpecs).",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_CDI_DIRS", Severity: Error, Area: AreaRuntime, Title: "the runtime does not read the directory of Berth's CDI spec",
			Meaning: "Containers that ask for a device of Berth do not start.",
			Fix:     "Add the directory to cdi_spec_dirs of the runtime's configuration, or set cdiDir of the agent to one that is read.",
			Seen:    seenDoctor,
		},
		{
			Code: "KUBELET_DIR_MISSING", Severity: Error, Area: AreaKubelet, Title: "the kubelet's device plugin directory does not exist",
			Meaning: "No device plugin can register here.",
			Fix:     "Check that a kubelet runs, and give its root directory with --kubelet-dir.",
			Seen:    seenDoctor,
		},
		{
			Code: "KUBELET_SOCKET_DOWN", Severity: Error, Area: AreaKubelet, Title: "a socket of the kubelet does not exist or no process listens on it",
			Meaning: "Over device-plugins/kubelet.sock the agent registers; over pod-resources/kubelet.sock programs read which pod has which devices.",
			Fix:     "Start the kubelet; a socket file that is left over is replaced when it starts.",
			Seen:    seenDoctor,
		},
		{
			Code: "KUBELET_OLD", Severity: Warning, Area: AreaKubelet, Title: "the kubelet is old",
			Meaning: "CDI devices in a device plugin's answer need 1.31 or later by default; the status of devices in a pod's status needs 1.36.",
			Fix:     "Upgrade the kubelet, or let the agent pass device nodes (deviceListStrategy: envvar, passDeviceSpecs).",
			Seen:    seenDoctor,
		},
		{
			Code: "CGROUP_V1", Severity: Info, Area: AreaKubelet, Title: "the node uses cgroup v1",
			Meaning: "Kubernetes keeps it only for old systems, and recent kubelets refuse to start on it.",
			Fix:     "Boot with systemd.unified_cgroup_hierarchy=1.",
			Seen:    seenDoctor,
		},
		{
			Code: "GPU_INSTANCE_EMPTY", Severity: Warning, Area: AreaMIG, Title: "a GPU instance has no compute instance",
			Meaning: "It takes memory slices and no container can use it: a change of the layout was interrupted.",
			Fix:     "Apply the MIG layout again (berth mig apply), or destroy the instance (nvidia-smi mig -dgi).",
			Seen:    seenDoctor,
		},
		{
			Code: "MPS_LEFTOVER", Severity: Warning, Area: AreaSharing, Title: "an MPS directory is left over",
			Meaning: "There are the files of an MPS daemon for a GPU that the node does not have.",
			Fix:     "Delete the directory once no MPS daemon uses it.",
			Seen:    seenDoctor,
		},
		{
			Code: "AGENT_UNREACHABLE", Severity: Error, Area: AreaAgent, Title: "the agent's page does not answer",
			Meaning: "The agent does not run, or has another state directory, where its socket is.",
			Fix:     "See the agent's pod on this node and its log; give the socket with --agent if it is another.",
			Seen:    seenDoctor,
		},
		{
			Code: "ALLOCATABLE_DIFFERS", Severity: Error, Area: AreaKubelet, Title: "the kubelet has another number of devices than the agent",
			Meaning: "The scheduler counts on what the kubelet says is allocatable: pods stay Pending, or come where no device is free. The kubelet has none while no agent serves it. A change takes the kubelet some seconds to publish.",
			Fix:     "Check that the agent's pod runs and is ready; look again after ten seconds; then see the agent's log and the kubelet's (device plugin).",
			Seen:    seenDoctor,
		},
		{
			Code: "AGENT_NOT_READY", Severity: Error, Area: AreaAgent, Title: "the agent is not ready",
			Meaning: "Its readiness probe says what it waits for.",
			Fix:     "Read the reason, and the agent's log.",
			Seen:    seenDoctor,
		},
		{
			Code: "GPUNODE_MISSING", Severity: Error, Area: AreaAgent, Title: "there is no GPUNode of the node",
			Meaning: "The agent does not run there, works standalone, or may not write it.",
			Fix:     "See the agent's pod and its log; its rights are in deploy/agent.yaml.",
			Seen:    "berth doctor",
		},
		{
			Code: "GPUNODE_STALE", Severity: Warning, Area: AreaAgent, Title: "the GPUNode is not what the node has",
			Meaning: "It names other GPUs or another driver than the node: the agent no longer writes it, or the agent cannot reach the API server.",
			Fix:     "See the agent's log; the object is written again at its next start.",
			Seen:    seenDoctor,
		},
		{
			Code: "NODE_NOT_READY", Severity: Error, Area: AreaKubelet, Title: "the node is not ready",
			Meaning: "The kubelet does not report to the API server, or says itself that it cannot run pods.",
			Fix:     "See the condition's message and the kubelet's log.",
			Seen:    "berth doctor NODE",
		},
		{
			Code: "NODE_PRESSURE", Severity: Warning, Area: AreaKubelet, Title: "a condition of the node says that something is wrong",
			Meaning: "Another program found a fault and says so in the node's conditions: memory, disk, processes, or a health monitor of the GPUs.",
			Fix:     "See the condition's message.",
			Seen:    "berth doctor NODE",
		},
		{
			Code: "CONDITION_FALSE", Severity: Warning, Area: AreaConfig, Title: "a condition of the GPUNode is not met",
			Meaning: "The newest configuration is refused, or a MIG layout waits or failed.",
			Fix:     "See the condition's message (kubectl describe gpunode NODE); for a MIG layout, berth mig plan NODE LAYOUT says who is in the way.",
			Seen:    "berth doctor NODE",
		},
	}
}
