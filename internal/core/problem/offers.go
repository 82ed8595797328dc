package problem

// offerProblems are the problems of what a node advertises and of how its GPUs are shared and partitioned.
func offerProblems() []Problem {
	return []Problem{
		{
			Code: "MIG_EMPTY", Severity: Warning, Area: AreaSharing, Title: "a GPU has MIG enabled and no MIG device",
			Meaning: "No part of the GPU can be allocated.",
			Fix:     "Apply a MIG layout (label nvidia.com/mig.config), or disable MIG.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_NOT_SINGLE", Severity: Error, Area: AreaSharing, Title: "the GPUs do not meet MIG strategy single",
			Meaning: "The strategy wants MIG on all GPUs with one profile everywhere. What does not fit is not advertised.",
			Fix:     "Apply a layout with one profile, or set migStrategy: mixed.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_PARTIAL_COMPUTE", Severity: Warning, Area: AreaSharing, Title: "a MIG device is a part of its GPU instance",
			Meaning: "Compute instances that share a GPU instance's memory have no isolation between them, and are not advertised.",
			Fix:     "Make one compute instance of the full size per GPU instance; a MIG layout does so.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_PROFILE_UNKNOWN", Severity: Error, Area: AreaSharing, Title: "a MIG device's profile is not known",
			Meaning: "The driver does not say it, so the device cannot be named and is not advertised.",
			Fix:     "Update the driver, or make the MIG device again.",
			Seen:    seenNode,
		},
		{
			Code: "MIXED_RESOURCE", Severity: Warning, Area: AreaSharing, Title: "one resource has devices of unlike kinds",
			Meaning: "A pod that asks for the resource cannot know which kind it gets.",
			Fix:     "Give each kind a name of its own: resourceName, sharing.resourceName or sharing.renameByDefault.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_DAEMON", Severity: Error, Area: AreaSharing, Title: "the MPS daemon of a GPU does not run",
			Meaning: "No replica of the GPU is allocated until it does.",
			Fix:     "See the reason in the message and the daemon's log below the MPS directory; the supervisor starts it again by itself.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_MEMORY_UNKNOWN", Severity: Error, Area: AreaSharing, Title: "a GPU's memory cannot be divided for MPS",
			Meaning: "The driver does not say how much memory the GPU has, so no limit for each client can be made.",
			Fix:     "Set pinnedMemoryMiB in the rule, or -1 for no limit.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_ON_MIG", Severity: Error, Area: AreaSharing, Title: "MPS is requested where MIG is enabled",
			Meaning: "A MIG device is not shared by MPS.",
			Fix:     "Share the MIG device by time slicing, or disable MIG on that GPU.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_SUPERVISOR", Severity: Error, Area: AreaSharing, Title: "the MPS supervisor does not answer",
			Meaning: "No process starts or watches MPS daemons, so no MPS replica is allocated.",
			Fix:     "Run berth-agent mps on the node (deploy/mps.yaml), with the same MPS directory.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_TOO_MANY_REPLICAS", Severity: Error, Area: AreaSharing, Title: "more MPS replicas than a server has clients",
			Meaning: "An MPS server takes 48 clients (16 before Volta).",
			Fix:     "Set fewer replicas.",
			Seen:    seenNode,
		},
		{
			Code: "RESOURCE_NAME_INVALID", Severity: Error, Area: AreaSharing, Title: "the kubelet would refuse a resource's name",
			Meaning: "Nothing is advertised under that name.",
			Fix:     "Correct the name in the configuration: DOMAIN/NAME, 63 characters at most after the slash.",
			Seen:    seenNode,
		},
		{
			Code: "RULE_DEVICE_UNKNOWN", Severity: Warning, Area: AreaSharing, Title: "a rule names a device that the node does not have",
			Meaning: "The rule does nothing for that name. A GPU that was lost, or whose index changed, looks like this.",
			Fix:     "Correct the index or UUID in the rule; name GPUs by UUID, or select them by model.",
			Seen:    seenNode,
		},
		{
			Code: "RULE_UNUSED", Severity: Info, Area: AreaSharing, Title: "a rule decides about no device of the node",
			Meaning: "That is normal where one file serves nodes of different kinds.",
			Fix:     "Otherwise: the message says what the node has, and put the rule before those that take its devices.",
			Seen:    seenNode,
		},
		{
			Code: "SHARING_INVALID", Severity: Error, Area: AreaSharing, Title: "a sharing setting is not valid",
			Meaning: "The devices of the rule are not shared as it says.",
			Fix:     "Set replicas and limits to what the message says.",
			Seen:    seenNode,
		},
		{
			Code: "SHARING_NOT_APPLIED", Severity: Warning, Area: AreaSharing, Title: "a rule shares a GPU that is not advertised as a whole",
			Meaning: "The GPU has MIG enabled; its MIG devices are advertised as migDevices says.",
			Fix:     "Share the MIG devices there, or disable MIG on the GPU.",
			Seen:    seenNode,
		},
		{
			Code: "TIME_SLICE", Severity: Warning, Area: AreaSharing, Title: "a time slice could not be set",
			Meaning: "The GPU is shared with the slice that it had.",
			Fix:     "See the error in the message: nvidia-smi must be below the driver root, and the driver 440 or newer.",
			Seen:    seenNode,
		},
		{
			Code: "TIME_SLICE_ON_MIG", Severity: Warning, Area: AreaSharing, Title: "a time slice is wanted for a MIG device",
			Meaning: "The driver has time slices of whole GPUs only. The device is shared with the driver's own.",
			Fix:     "Leave timeSlice out of the rule.",
			Seen:    seenNode,
		},
		{
			Code: "UUID_UNUSABLE", Severity: Error, Area: AreaSharing, Title: "a device has no UUID of its own",
			Meaning: "It cannot be distinguished from others and is not advertised.",
			Fix:     "Reset the GPU or reboot the node; two GPUs with one UUID are a defect.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_FAILED", Severity: Error, Area: AreaMIG, Title: "a MIG layout could not be applied",
			Meaning: "The GPU is in the state that the message says. It is tried again after a while.",
			Fix:     "See the message. A GPU that needs a reset cannot be changed while a program has it open: the message names the process, its pod and what to stop (DCGM, nvidia-persistenced, a display).",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_JOURNAL_CORRUPT", Severity: Warning, Area: AreaMIG, Title: "the journal of MIG changes was damaged",
			Meaning: "The file was kept with the suffix .bak. A change that was under way is planned again. The problem ends when a new journal was written, or all GPUs are as they are wanted.",
			Fix:     "Nothing, unless it happens again: then check the disk below /var/lib/berth (persistentDir).",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_UNREADABLE", Severity: Error, Area: AreaMIG, Title: "the journal of MIG changes cannot be read",
			Meaning: "MIG layouts are not changed until it can: it says whether a change was under way.",
			Fix:     "Check that the agent may read and write /var/lib/berth (persistentDir), and that the disk below it works.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_UNWRITABLE", Severity: Error, Area: AreaMIG, Title: "the journal of MIG changes cannot be written",
			Meaning: "MIG layouts are not changed until it can: without it a crash in the middle could not be repaired.",
			Fix:     "Make /var/lib/berth (persistentDir) writable, and its disk not full.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_VERSION", Severity: Warning, Area: AreaMIG, Title: "the journal of MIG changes is of another version of Berth",
			Meaning: "The file was kept with the suffix .bak. A change that was under way is planned again.",
			Fix:     "Nothing; run one version of the agent at a time.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_LAYOUTS_REFUSED", Severity: Error, Area: AreaMIG, Title: "the file of MIG layouts is refused",
			Meaning: "The last good one stays in force.",
			Fix:     "Correct what the message names.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_LAYOUT_UNKNOWN", Severity: Error, Area: AreaMIG, Title: "the layout that the node asks for does not exist",
			Meaning: "The GPUs stay as they are.",
			Fix:     "Correct the label nvidia.com/mig.config, or define the layout; berth mig layouts NODE lists them.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_REFUSED", Severity: Error, Area: AreaMIG, Title: "a GPU cannot have the layout",
			Meaning: "The GPU does not have the profile, or cannot hold as many of it.",
			Fix:     "Choose a layout that fits; berth mig plan NODE LAYOUT shows what would be changed.",
			Seen:    seenNode + ", condition MIGApplied",
		},
	}
}
