package problem

// agentProblems are the problems of the agent and its configuration.
func agentProblems() []Problem {
	return []Problem{
		{
			Code: "CONFIG_FORBIDDEN", Severity: Error, Area: AreaConfig, Title: "the agent may not read its configuration",
			Meaning: "The last good configuration stays in force; an agent that never had one advertises nothing.",
			Fix:     "Apply deploy/options/config-map.yaml, in the namespace of the ConfigMap.",
			Seen:    seenNode,
		},
		{
			Code: "CONFIG_REFUSED", Severity: Error, Area: AreaConfig, Title: "the newest configuration is refused",
			Meaning: "The last good one stays in force.",
			Fix:     "Correct the line that the message names.",
			Seen:    seenNode + ", condition ConfigAccepted",
		},
		{
			Code: "CONFIG_RESTART", Severity: Warning, Area: AreaConfig, Title: "a changed setting waits for a restart",
			Meaning: "The settings that the message names take effect only when the agent starts again.",
			Fix:     "Restart the agent's pod; pods keep their GPUs.",
			Seen:    seenNode,
		},
		{
			Code: "GPUNODE_DEFINITION", Severity: Error, Area: AreaAgent, Title: "the definition of GPUNode cannot be installed",
			Meaning: "The API server does not know GPUNode, so the node's GPUs are not shown.",
			Fix:     "Apply charts/berth/crds, or give the agent the right to do so.",
			Seen:    "the agent's log and /debug/state",
		},
		{
			Code: "GPUNODE_WRITE", Severity: Warning, Area: AreaAgent, Title: "the GPUNode cannot be written",
			Meaning: "The API shows the GPUNode that was written last, or none.",
			Fix:     "See the error in the message. The write is retried; the agent's rights are in deploy/agent.yaml.",
			Seen:    "the agent's log, the metric berth_problem and /debug/state",
		},
		{
			Code: "LABELS", Severity: Warning, Area: AreaAgent, Title: "the labels about the node's GPUs cannot be written",
			Meaning: "The labels are older than the node's GPUs; pods that choose nodes by them may not be scheduled here, or be scheduled here and fail.",
			Fix:     "See the error in the message. It is tried again by itself; docs/labels.md says what each value of labels.output needs.",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_CORRUPT", Severity: Warning, Area: AreaAgent, Title: "the ledger was damaged",
			Meaning: "The file was kept with the suffix .bak, and Berth started with an empty ledger. What is in use is found again in the kubelet's checkpoint and the running containers.",
			Fix:     "Nothing, unless it happens again: then check the disk of /run.",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_UNWRITABLE", Severity: Error, Area: AreaAgent, Title: "the ledger cannot be written",
			Meaning: "Holdings are kept in memory and would have to be found again after a crash.",
			Fix:     "Make the state directory writable, and its disk not full.",
			Seen:    seenNode,
		},
		{
			Code: "LEDGER_VERSION", Severity: Warning, Area: AreaAgent, Title: "the ledger is of another version of Berth",
			Meaning: "The file was kept with the suffix .bak, and Berth started with an empty ledger. What is in use is found again in the kubelet's checkpoint and the running containers.",
			Fix:     "Nothing; run one version of the agent at a time.",
			Seen:    seenNode,
		},
		{
			Code: "LISTEN_FAILED", Severity: Warning, Area: AreaAgent, Title: "the agent's pages cannot be served",
			Meaning: "Metrics, or the probes, berth top and berth gpus on the node, do not work; the pods' GPUs do.",
			Fix:     "Make the state directory writable, and its path short enough for a socket; choose another address with --metrics-listen, or none. The socket is tried again by itself.",
			Seen:    seenNode,
		},
		{
			Code: "NODE_CONDITION", Severity: Warning, Area: AreaAgent, Title: "the node's condition for its GPUs cannot be written",
			Meaning: "The condition GPUsHealthy of the Node, and the taint berth.dev/gpu-unhealthy where it is wanted, are older than the GPUs' health.",
			Fix:     "Give the agent the right to patch nodes and nodes/status, as deploy/agent.yaml does; the taint of taintUnhealthy needs deploy/options/taint-unhealthy.yaml besides. It is tried again by itself.",
			Seen:    seenNode,
		},
		{
			Code: "NODE_LABEL", Severity: Warning, Area: AreaAgent, Title: "the node's labels cannot be written",
			Meaning: "The labels are older than the node's state.",
			Fix:     "Give the agent the right to patch nodes, as deploy/agent.yaml does.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_DAMAGED", Severity: Warning, Area: AreaAgent, Title: "a state file is damaged",
			Meaning: "What the file said is lost. The file was kept with the suffix .bak; the message says what the agent does without it.",
			Fix:     "Nothing this time. If it happens again, check the disk; the kept file can be deleted.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_NEWER", Severity: Warning, Area: AreaAgent, Title: "a state file was written by a newer Berth",
			Meaning: "A newer agent ran on the node before. The content of its file is not used; it was kept with the suffix .bak.",
			Fix:     "Nothing, if the agent was downgraded on purpose; otherwise run the newer one again.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_UNREADABLE", Severity: Error, Area: AreaAgent, Title: "a state file cannot be read",
			Meaning: "The file could not be read from the disk; the message says what the agent does without it.",
			Fix:     "Check the disk and the permissions of the folder that the message names.",
			Seen:    seenNode,
		},
		{
			Code: "STATE_UNWRITABLE", Severity: Error, Area: AreaAgent, Title: "the agent's state cannot be written",
			Meaning: "How each device was advertised would be lost at a restart.",
			Fix:     "Make the state directory writable, and its disk not full.",
			Seen:    seenNode,
		},
	}
}
