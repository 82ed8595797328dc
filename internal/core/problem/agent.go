package problem

// agentProblems are the problems of the agent and its configuration.
func agentProblems() []Problem {
	return []Problem{
		{
			Code: "CONFIG_FORBIDDEN", Severity: Error, Area: AreaConfig, Title: "the agent may not read its configuration",
			Meaning: "The last valid configuration stays in use; an agent that never had one advertises nothing.",
			Fix:     "Give the agent the right to get, list and watch ConfigMaps in that namespace: the chart does in its own, and with rights.migConfigMap for a migConfigMap elsewhere.",
			Seen:    seenNode,
		},
		{
			Code: "CONFIG_REFUSED", Severity: Error, Area: AreaConfig, Title: "the newest configuration is refused",
			Meaning: "The last valid one stays in use.",
			Fix:     "Correct the line and field that the message names.",
			Seen:    seenNode + ", condition ConfigAccepted",
		},
		{
			Code: "CONFIG_RESTART", Severity: Warning, Area: AreaConfig, Title: "a changed setting waits for a restart",
			Meaning: "The settings that the message names take effect at the agent's next start.",
			Fix:     "Restart the agent's pod; pods keep their GPUs.",
			Seen:    seenNode,
		},
		{
			Code: "DCGM_COUNTERS_INVALID", Severity: Warning, Area: AreaConfig, Title: "a list of DCGM's fields cannot be read completely",
			Meaning: "The lines that the message names have no effect; the others do. A file that cannot be read, or is empty, adds no field.",
			Fix:     "Correct the lines, and restart the agent's pod (a change of agent.dcgmCounters of the chart does).",
			Seen:    seenNode,
		},
		{
			Code: "DCGM_FIELD_UNAVAILABLE", Severity: Warning, Area: AreaConfig, Title: "a listed field of DCGM has no value",
			Meaning: "Queries for the field return nothing. The reason is in the message.",
			Fix:     "Remove the field from the list (dcgmCounters, dcgmCountersFile), or use what the message names in its place. docs/metrics.md lists the fields that there are.",
			Seen:    seenNode,
		},
		{
			Code: "GPUNODE_DEFINITION", Severity: Error, Area: AreaAgent, Title: "the CustomResourceDefinition of GPUNode is missing or old",
			Meaning: "The API server does not have the resource GPUNode, so the node's GPUs are not shown; or it has an earlier version, and drops what this agent adds.",
			Fix:     "The operator of the chart applies it: see its log (kubectl -n berth-system logs deployment/berth-operator). Without the operator: kubectl apply --server-side -f api/crds. The agent looks again by itself.",
			Seen:    "the agent's log and /debug/state",
		},
		{
			Code: "GPUNODE_WRITE", Severity: Warning, Area: AreaAgent, Title: "the GPUNode cannot be written",
			Meaning: "The API server has an outdated GPUNode of this node, or none.",
			Fix:     "See the error in the message. The agent repeats the write. The permissions that it needs are in docs/privileges.md.",
			Seen:    "the agent's log, the metric berth_problem and /debug/state",
		},
		{
			Code: "LABELS", Severity: Warning, Area: AreaAgent, Title: "the labels about the node's GPUs cannot be written",
			Meaning: "The labels of the Node are outdated. Pods that select nodes by them may not be scheduled here, or may be scheduled here and fail.",
			Fix:     "See the error in the message. The agent repeats the write. docs/labels.md lists what each value of labels.output needs.",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_CORRUPT", Severity: Warning, Area: AreaAgent, Title: "the ledger was damaged",
			Meaning: "The file was kept with the suffix .bak, and the agent started with an empty ledger. It finds the devices in use in the kubelet's checkpoint and the running containers.",
			Fix:     "Nothing, unless it happens again: then check the file system of /run/berth (stateDir).",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_UNWRITABLE", Severity: Error, Area: AreaAgent, Title: "the ledger cannot be written",
			Meaning: "Holdings are kept in memory only. After a crash the agent has to find them again in the kubelet's checkpoint and the running containers.",
			Fix:     "Make the directory that the message names writable (stateDir or persistentDir), and free space on its file system.",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_VERSION", Severity: Warning, Area: AreaAgent, Title: "the ledger is of another version of Berth",
			Meaning: "The file was kept with the suffix .bak, and the agent started with an empty ledger. It finds the devices in use in the kubelet's checkpoint and the running containers.",
			Fix:     "Install the version of Berth that wrote the file, or a newer one. It happens again if agents of two versions run on the node in turn.",
			Seen:    seenNode,
		},
		{
			Code: "LISTEN_FAILED", Severity: Warning, Area: AreaAgent, Title: "the agent cannot serve its socket or its metrics",
			Meaning: "Either the metrics are missing, or the probes, berth top and berth gpus on the node do not work; the message says which. The GPUs of pods are not affected.",
			Fix:     "For the socket: make /run/berth (stateDir) writable, and its path shorter than 100 characters; the agent tries again. For the metrics: choose another address with --metrics-listen.",
			Seen:    seenNode,
		},
		{
			Code: "NODE_CONDITION", Severity: Warning, Area: AreaAgent, Title: "the Node's condition GPUsHealthy cannot be written",
			Meaning: "The condition GPUsHealthy of the Node, and the taint berth.dev/gpu-unhealthy if taintUnhealthy is set, do not show the present health of the GPUs.",
			Fix:     "Give the agent the permission to patch nodes/status, as the chart does; taintUnhealthy also needs rights.taintUnhealthy of the chart. The agent repeats the write.",
			Seen:    seenNode,
		},
		{
			Code: "NODE_LABEL", Severity: Warning, Area: AreaAgent, Title: "the label nvidia.com/mig.config.state cannot be written",
			Meaning: "The label does not show the present state of the MIG layout, on which programs that use NVIDIA's MIG manager wait.",
			Fix:     "Give the agent the permission to patch nodes, as the chart does. The agent repeats the write.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_DAMAGED", Severity: Warning, Area: AreaAgent, Title: "a state file is damaged",
			Meaning: "The content of the file is lost. The file was kept with the suffix .bak; the message says what the agent does without it.",
			Fix:     "Nothing, unless it happens again: then check the disk. The file with the suffix .bak can be deleted.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_NEWER", Severity: Warning, Area: AreaAgent, Title: "a state file was written by a newer Berth",
			Meaning: "A newer agent ran on the node before. The content of its file is not used; the file was kept with the suffix .bak.",
			Fix:     "Nothing, if the agent was downgraded on purpose; otherwise run the newer one again.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_UNREADABLE", Severity: Error, Area: AreaAgent, Title: "a state file cannot be read",
			Meaning: "The file could not be read from the disk; the message says what the agent does without it.",
			Fix:     "Check the disk and the permissions of the directory that the message names.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_UNWRITABLE", Severity: Error, Area: AreaAgent, Title: "the agent's state cannot be written",
			Meaning: "What the message names is in force all the same, but the next start of the agent would not know it. The write is repeated until it succeeds, at least every minute.",
			Fix:     "Make the directory that the message names writable (stateDir or persistentDir), and free space on its file system.",
			Seen:    seenNode,
		},
	}
}
