package problem

// draProblems are the problems of Dynamic Resource Allocation.
func draProblems() []Problem {
	return []Problem{
		{
			Code: "API_NOT_CHOSEN", Severity: Warning, Area: AreaKubelet, Title: "the API for GPUs with allocation.api auto is not chosen",
			Meaning: "A rule of the configuration has allocation.api auto, and the agent has not chosen between the device plugin and DRA yet. Until it has, no device of the node is newly advertised; those that were advertised before stay.",
			Fix:     "The message has the reason: the API server or the driver does not respond, or the choice cannot be written. The agent tries again. Or set allocation.api to device-plugin or dra.",
			Seen:    seenNode,
		},
		{
			Code: "DEVICE_CLASS_AMBIGUOUS", Severity: Warning, Area: AreaSharing, Title: "several DeviceClasses have one extended resource name",
			Meaning: "Kubernetes uses the DeviceClass that was created last for pods that request the resource. When that one is deleted, it uses another.",
			Fix:     "Remove extendedResourceName from all but one of the DeviceClasses that the message names.",
			Seen:    seenNode,
		},
		{
			Code: "DEVICE_CLASS_MISSING", Severity: Warning, Area: AreaSharing, Title: "no DeviceClass has the extended resource name of the node's GPUs",
			Meaning: "GPUs of this node are allocated through DRA. Pods with a ResourceClaim get them; pods that request the resource that the message names do not.",
			Fix:     "Apply the output of berth classes. If another driver's DeviceClass has the name, remove its extendedResourceName first. Where the API server drops the field, switch its feature gate DRAExtendedResource on, or use ResourceClaims.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_CALL_HANGS", Severity: Error, Area: AreaKubelet, Title: "a call of the kubelet for a claim does not return",
			Meaning: "The kubelet has repeated a prepare or unprepare of the claim, and the agent has not ended the call before it. A prepare ends after 40 s, unless a write of the agent's ledger does not return. Other claims are not affected as long as they need no such write.",
			Fix:     "Check the disk with the agent's state directory (its kernel log, and whether it is full or read-only). When it answers, the call ends and the kubelet's next one succeeds; if it does not, restart the agent.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_DEVICE_REFUSED", Severity: Warning, Area: AreaGPU, Title: "a GPU cannot be published for claims",
			Meaning: "A rule of the configuration allocates the GPU through DRA, but a ResourceSlice cannot describe it. No claim gets it.",
			Fix:     "The message names the GPU and the reason. Allocate the GPU through the device plugin (gpus[].allocation.api: device-plugin), or remove the reason.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_FEATURE_DISABLED", Severity: Warning, Area: AreaKubelet, Title: "the API server drops fields of the ResourceSlices",
			Meaning: "A feature gate of Dynamic Resource Allocation is off in the API server. Devices that need it are not published; whole GPUs are.",
			Fix:     "Enable the feature gates that the message names in the API server, the scheduler and the controller manager, and restart the agent. Or leave it, when no claim needs such a device.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_GPU_COUNTED", Severity: Warning, Area: AreaKubelet, Title: "GPUs are not published, because the kubelet counts them for a device plugin",
			Meaning: "The configuration allocates the GPUs through DRA, but the kubelet still counts them as allocatable, or does not say which devices it counts. They are published when it does not count them any more, so that no GPU is in both APIs.",
			Fix:     "The message has the reason. Remove other device plugins for GPUs, such as NVIDIA's, from the node. Check that the kubelet runs and that the agent mounts its folder pod-resources.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_GPU_REMOVED", Severity: Error, Area: AreaGPU, Title: "a claim has a GPU that is not on the node any more",
			Meaning: "The GPU of a prepared claim was removed from the node, or the driver does not list it any more. The pods of the claim cannot use it, and no further pod of the claim starts. The condition Healthy of the device in the claim's status.devices says so too.",
			Fix:     "Delete the pods of the claim that the message names, and the claim unless it is that of a ResourceClaimTemplate: the scheduler then allocates another GPU. If the GPU is still in the node, look for its XID in the kernel log, and reboot.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_NOT_ADOPTED", Severity: Error, Area: AreaKubelet, Title: "the claims that the kubelet has prepared are not known",
			Meaning: "The agent cannot read the kubelet's record of prepared claims. It allocates nothing until it can, because a GPU of a claim could be given to a second pod.",
			Fix:     "The message names the file and the reason. Check that the agent mounts the kubelet's directory. A damaged file also stops the kubelet: drain the node, stop the kubelet, remove the file, start the kubelet.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_NOT_SERVED", Severity: Error, Area: AreaKubelet, Title: "the kubelet cannot prepare claims",
			Meaning: "The DRA driver does not serve its sockets, or the kubelet has refused it. Pods with a claim for a GPU of this node wait.",
			Fix:     "The message has the reason. Check that the kubelet runs, that it is of version 1.34 or later, and that the agent mounts its folders plugins and plugins_registry. The agent tries again.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_PODS_UNKNOWN", Severity: Warning, Area: AreaKubelet, Title: "the pods of prepared claims are not known",
			Meaning: "The agent cannot read the kubelet's record of prepared claims, so it uses the pods that it knew before. GPUs stay allocated. The containers of a pod that started since then on the GPU of a shared claim can be reported as DEVICE_CONFLICT.",
			Fix:     "The message names the file and the reason. Check that the agent mounts the kubelet's directory. A damaged file also stops the kubelet at its next start: drain the node, stop the kubelet, remove the file, start the kubelet.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_PUBLISH_FAILED", Severity: Error, Area: AreaKubelet, Title: "the ResourceSlices are not in the API server as they should be",
			Meaning: "The scheduler uses the devices of an older state, or none of this node.",
			Fix:     "The message has the reason: the API server does not answer, refuses the slices, or the agent lacks rights for resourceslices (set rights.dra of the chart). The agent tries again.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_SLICES_REMAIN", Severity: Error, Area: AreaKubelet, Title: "GPUs are not advertised, because ResourceSlices may still have them",
			Meaning: "The GPUs were allocated through DRA, and the configuration gives them to the device plugin. The agent cannot read or delete their ResourceSlices, so it does not know whether the scheduler still allocates them to claims.",
			Fix:     "The message has the reason: the API server does not answer, or the agent lacks rights for resourceslices (keep rights.dra of the chart until they are deleted). The agent tries again.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_STATUS_FAILED", Severity: Warning, Area: AreaKubelet, Title: "the status of a claim does not have its devices",
			Meaning: "The agent could not write the UUID, PCI bus ID and health of the claim's devices into status.devices. The claim and its pods are not affected.",
			Fix:     "The message has the reason: the API server does not answer, or the agent lacks rights for resourceclaims/status and resourceclaims/driver (set rights.dra of the chart). The agent tries again.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_TWO_APIS", Severity: Error, Area: AreaKubelet, Title: "a device plugin and ResourceSlices have the same GPU or resource name",
			Meaning: "The kubelet counts GPUs of ResourceSlices for a device plugin, or counts a resource whose DeviceClass selects devices of this node. Both could allocate the same GPU, and which of them serves a pod depends on whether the plugin runs. The devices that are in both have the taint gpu.berth.dev/two-apis, so no further claim gets them.",
			Fix:     "Remove the other device plugin, such as NVIDIA's, from the node, or allocate the GPUs that the message names through the device plugin. The taint ends within seconds.",
			Seen:    seenNode,
		},
	}
}
