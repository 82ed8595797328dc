package problem

// draProblems are the problems of Dynamic Resource Allocation.
func draProblems() []Problem {
	return []Problem{
		{
			Code: "DRA_FEATURE_DISABLED", Severity: Warning, Area: AreaKubelet, Title: "the API server drops fields of the ResourceSlices",
			Meaning: "A feature gate of Dynamic Resource Allocation is off in the API server. Devices that need it are not published; whole GPUs are.",
			Fix:     "Enable the feature gates that the message names in the API server, the scheduler and the controller manager, and restart the agent. Or leave it, when no claim needs such a device.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_NOT_SERVED", Severity: Error, Area: AreaKubelet, Title: "the kubelet cannot prepare claims",
			Meaning: "The DRA driver does not serve its sockets, or the kubelet has refused it. Pods with a claim for a GPU of this node wait.",
			Fix:     "The message has the reason. Check that the kubelet runs, that it is of version 1.34 or later, and that the agent mounts its folders plugins and plugins_registry. The agent tries again.",
			Seen:    seenNode,
		},
		{
			Code: "DRA_PUBLISH_FAILED", Severity: Error, Area: AreaKubelet, Title: "the ResourceSlices are not in the API server as they should be",
			Meaning: "The scheduler uses the devices of an older state, or none of this node.",
			Fix:     "The message has the reason: the API server does not answer, refuses the slices, or the agent lacks rights for resourceslices (deploy/agent.yaml). The agent tries again.",
			Seen:    seenNode,
		},
	}
}
