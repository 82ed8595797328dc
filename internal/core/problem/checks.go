package problem

// checkProblems are the problems that only berth doctor finds.
func checkProblems() []Problem {
	return []Problem{
		{
			Code: "DRIVER_NOT_LOADED", Severity: Error, Area: AreaDriver, Title: "the kernel module nvidia is not loaded",
			Meaning: "The file /proc/driver/nvidia/version does not exist, so no program can use a GPU.",
			Fix:     "Load the module (modprobe nvidia), or install the driver. If it does not load, see the kernel log (dmesg).",
			Seen:    seenDoctor,
		},
		{
			Code: "PLATFORM_WSL", Severity: Error, Area: AreaDriver, Title: "GPUs of the Windows Subsystem for Linux are not supported",
			Meaning: "WSL has one device, /dev/dxg, for all GPUs together, no device node per GPU and no driver in the Linux kernel. A container cannot be given one GPU and no other, so Berth advertises none.",
			Fix:     "Run the node on Linux with NVIDIA's driver, or use a virtual machine that the GPU is passed through to.",
			Seen:    seenDoctor,
		},
		{
			Code: "DRIVER_LIBRARY_MISSING", Severity: Error, Area: AreaDriver, Title: "a library of the driver was not found",
			Meaning: "Without libnvidia-ml no GPU is found; without libcuda no program in a container can compute.",
			Fix:     "Install the driver's libraries. If they are below another root, as with a driver container, set --driver-root (/run/nvidia/driver).",
			Seen:    seenDoctor,
		},
		{
			Code: "DRIVER_LIBRARY_VERSION", Severity: Error, Area: AreaDriver, Title: "library and kernel module are of different versions",
			Meaning: "The driver refuses a library of another version. The usual reason is a driver upgrade while the old kernel module is still loaded.",
			Fix:     "Drain the node and reload the kernel module, or reboot the node. Then restart the agent.",
			Seen:    seenDoctor,
		},
		{
			Code: "DEVICE_NODE_WRONG", Severity: Error, Area: AreaDriver, Title: "a device node has the wrong numbers",
			Meaning: "The device node opens another device or none. It was created before the kernel module was reloaded. The agent creates the driver's device nodes again where it has the permission.",
			Fix:     "Check that the agent runs privileged and with the host's root file system, as in the chart. Or delete the device node on the host and create it again: nvidia-modprobe -u -c MINOR.",
			Seen:    seenDoctor,
		},
		{
			Code: "DEV_CHAR_LINK_MISSING", Severity: Warning, Area: AreaDriver, Title: "a device node has no link in /dev/char",
			Meaning: "With systemd cgroups, systemctl daemon-reload removes from running containers each device that has no link /dev/char/MAJOR:MINOR. This happens with runc 1.1.3 to 1.1.6, with systemd before 240, and where containers get devices without CDI (deviceListStrategy envvar or volume-mounts). Elsewhere the links are not needed and not checked.",
			Fix:     "Create the links: nvidia-ctk system create-dev-char-symlinks --create-all. To keep them over a reboot, install a udev rule that runs this command.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_NVIDIA_DEFAULT", Severity: Warning, Area: AreaCDI, Title: "the NVIDIA runtime is the default runtime",
			Meaning: "Every container of the node runs under the NVIDIA runtime, which follows the container's environment: a pod whose image or spec sets NVIDIA_VISIBLE_DEVICES=all can use every GPU, also those that other pods hold, without requesting one.",
			Fix:     "Make runc the default runtime; Berth needs no other one. Or set accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/nvidia-container-runtime/config.toml.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_MISSING", Severity: Error, Area: AreaCDI, Title: "there is no CDI spec of Berth",
			Meaning: "The container runtime cannot inject the devices that the agent allocates, so containers with a GPU do not start.",
			Fix:     "Check that the agent runs and may write /var/run/cdi.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_INVALID", Severity: Error, Area: AreaCDI, Title: "a CDI spec cannot be parsed",
			Meaning: "Runtimes ignore it, or refuse every device of its vendor.",
			Fix:     "Delete the file; the program that wrote it creates it again. Berth's spec is k8s.berth.dev-gpu.json.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_PATH", Severity: Error, Area: AreaCDI, Title: "a CDI spec names a file that does not exist",
			Meaning: "Containers with the device do not start.",
			Fix:     "Write the spec again. For Berth's spec, restart the agent; for NVIDIA's: nvidia-ctk cdi generate --output=FILE.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_SPEC_NUMBERS", Severity: Error, Area: AreaCDI, Title: "a CDI spec has other device numbers than the device node",
			Meaning: "Containers get a device node that opens another device or none. The spec was written before the kernel module was reloaded.",
			Fix:     "Write the spec again. For Berth's spec, restart the agent; for NVIDIA's: nvidia-ctk cdi generate --output=FILE.",
			Seen:    seenDoctor,
		},
		{
			Code: "CDI_DEVICE_TWICE", Severity: Error, Area: AreaCDI, Title: "two CDI specs of one directory have the same device",
			Meaning: "Container runtimes then use neither of the two, and containers with the device do not start.",
			Fix:     "Delete the file that is no longer needed; the evidence names both.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_CONFIG_INVALID", Severity: Error, Area: AreaRuntime, Title: "the runtime's configuration cannot be parsed",
			Meaning: "The container runtime cannot start with this file. If it runs, it still uses an older version of the file.",
			Fix:     "Correct the line that the evidence names.",
			Seen:    seenDoctor,
		},
		{
			Code: "RUNTIME_CDI_OFF", Severity: Error, Area: AreaRuntime, Title: "the runtime does not inject CDI devices",
			Meaning: "Containers get no GPU although the kubelet allocated one to them.",
			Fix: "Set enable_cdi = true in the CRI section of containerd's configuration and restart containerd. Where a distribution generates that file at each start, " +
				"edit its source instead, and restart the distribution: of MicroK8s /var/snap/microk8s/current/args/containerd-template.toml, of k0s a file " +
				"/etc/k0s/containerd.d/*.toml, of k3s and RKE2 config-v3.toml.tmpl beside the generated file (config.toml.tmpl with containerd 1.7). " +
				"Or let the agent pass device nodes (deviceListStrategy: [envvar] and passDeviceSpecs: true).",
			Seen: seenDoctor,
		},
		{
			Code: "RUNTIME_CDI_DIRS", Severity: Error, Area: AreaRuntime, Title: "the runtime does not read the directory of Berth's CDI spec",
			Meaning: "Containers with a GPU do not start, because the runtime does not find the CDI device.",
			Fix:     "Add the directory to cdi_spec_dirs of the runtime's configuration, or set cdiDir of the agent to one that is read.",
			Seen:    seenDoctor,
		},
		{
			Code: "KUBELET_DIR_DIFFERS", Severity: Error, Area: AreaKubelet, Title: "the agent is set to another directory than the kubelet's",
			Meaning: "The agent cannot ask the kubelet for a pod's devices, and its DRA driver is never registered. Some distributions give the kubelet a root directory of its own, such as /var/lib/k0s/kubelet.",
			Fix:     "Set host.kubeletDir in the chart's values, or --kubelet-dir, to the directory that the message names.",
			Seen:    seenDoctor,
		},
		{
			Code: "KUBELET_SOCKET_DOWN", Severity: Error, Area: AreaKubelet, Title: "a socket of the kubelet does not exist or no process listens on it",
			Meaning: "The agent registers its resources through device-plugins/kubelet.sock; programs read through pod-resources/kubelet.sock which pod has which devices.",
			Fix:     "Start the kubelet. It replaces an old socket file when it starts.",
			Seen:    seenDoctor,
		},
		{
			Code: "QUOTA_NOT_COUNTED", Severity: Info, Area: AreaSharing, Title: "a ResourceQuota names a resource in a form that is never counted",
			Meaning: "The API server accepts the name of an extended resource in a quota as it is, and with limits. before it, and counts neither: the quota limits nothing.",
			Fix:     "Write requests. before the resource's name in spec.hard of the quota.",
			Seen:    "berth doctor, berth doctor NODE",
		},
		{
			Code: "KUBELET_OLD", Severity: Warning, Area: AreaKubelet, Title: "the kubelet is old",
			Meaning: "A kubelet before 1.31 ignores CDI devices of a device plugin by default; a kubelet before 1.36 does not report devices in the pod's status.",
			Fix:     "Upgrade the kubelet, or let the agent pass device nodes (deviceListStrategy: [envvar] and passDeviceSpecs: true).",
			Seen:    seenDoctor,
		},
		{
			Code: "CGROUP_V1", Severity: Info, Area: AreaKubelet, Title: "the node uses cgroup v1",
			Meaning: "Kubernetes supports cgroup v1 only for old systems, and recent kubelets do not start on it by default.",
			Fix:     "Boot the node with the kernel parameter systemd.unified_cgroup_hierarchy=1.",
			Seen:    seenDoctor,
		},
		{
			Code: "GPU_INSTANCE_EMPTY", Severity: Warning, Area: AreaMIG, Title: "a GPU instance has no compute instance",
			Meaning: "The GPU instance uses memory slices, but no container can use it. A change of the MIG layout was interrupted.",
			Fix:     "Apply the MIG layout again (berth mig apply NODE LAYOUT), or destroy the instance (nvidia-smi mig -i INDEX -gi ID -dgi).",
			Seen:    seenDoctor,
		},
		{
			Code: "MPS_LEFTOVER", Severity: Warning, Area: AreaSharing, Title: "the directory of an MPS daemon is no longer needed",
			Meaning: "The directory has the files of an MPS daemon for a GPU that the node does not have.",
			Fix:     "Delete the directory once no MPS daemon uses it.",
			Seen:    seenDoctor,
		},
		{
			Code: "AGENT_UNREACHABLE", Severity: Error, Area: AreaAgent, Title: "the agent's page does not answer",
			Meaning: "The agent does not run, or its state directory, which has the socket, is another one.",
			Fix:     "See the agent's pod on this node and its log (kubectl logs). If the agent has another --state-dir, name its socket with --agent.",
			Seen:    seenDoctor,
		},
		{
			Code: "ALLOCATABLE_DIFFERS", Severity: Error, Area: AreaKubelet, Title: "the kubelet has another number of devices than the agent",
			Meaning: "The scheduler relies on the number that the kubelet reports as allocatable. If it is too low, pods stay Pending; if it is too high, pods are scheduled to a node without a free device. The kubelet reports 0 while no agent runs, and publishes a change after some seconds.",
			Fix:     "Check that the agent's pod runs and is ready, and check again after ten seconds. Then see the agent's log, and the kubelet's log for messages about device plugins.",
			Seen:    seenDoctor,
		},
		{
			Code: "AGENT_NOT_READY", Severity: Error, Area: AreaAgent, Title: "the agent is not ready",
			Meaning: "The agent runs, but something that it needs is missing. The evidence says what it waits for.",
			Fix:     "See the evidence and the agent's log (kubectl logs).",
			Seen:    seenDoctor,
		},
		{
			Code: "GPUNODE_MISSING", Severity: Error, Area: AreaAgent, Title: "there is no GPUNode of the node",
			Meaning: "The agent does not run on the node, runs with --standalone, or has no permission to write the GPUNode.",
			Fix:     "See the agent's pod and its log (kubectl logs). The permissions that it needs are in docs/privileges.md.",
			Seen:    "berth doctor",
		},
		{
			Code: "GPUNODE_STALE", Severity: Warning, Area: AreaAgent, Title: "the GPUNode does not match the node",
			Meaning: "The GPUNode lists other GPUs or another driver than the node has: the agent does not run, or cannot reach the API server.",
			Fix:     "See the agent's pod and its log (kubectl logs). A running agent writes the object again.",
			Seen:    seenDoctor,
		},
		{
			Code: "NODE_NOT_READY", Severity: Error, Area: AreaKubelet, Title: "the node is not ready",
			Meaning: "The kubelet does not report to the API server, or reports that it cannot run pods.",
			Fix:     "See the message of the node's condition Ready (kubectl describe node NODE) and the kubelet's log.",
			Seen:    "berth doctor NODE",
		},
		{
			Code: "NODE_PRESSURE", Severity: Warning, Area: AreaKubelet, Title: "a condition of the node reports a fault",
			Meaning: "The kubelet or a monitor reports a fault in the node's conditions, such as too little memory or disk space, too many processes, or a fault of a GPU.",
			Fix:     "See the condition's message (kubectl describe node NODE).",
			Seen:    "berth doctor NODE",
		},
		{
			Code: "CONDITION_FALSE", Severity: Warning, Area: AreaConfig, Title: "a condition of the GPUNode is not met",
			Meaning: "The newest configuration was refused, or a MIG layout is pending or has failed.",
			Fix:     "See the condition's message (kubectl describe gpunode NODE); for a MIG layout, berth mig plan NODE LAYOUT shows which pods block it.",
			Seen:    "berth doctor NODE",
		},
	}
}
