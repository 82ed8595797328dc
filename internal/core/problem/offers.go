package problem

// offerProblems are the problems of what a node advertises and of how its GPUs are shared and partitioned.
func offerProblems() []Problem {
	return []Problem{
		{
			Code: "MIG_EMPTY", Severity: Warning, Area: AreaSharing, Title: "a GPU has MIG enabled and no MIG device",
			Meaning: "No part of the GPU can be allocated.",
			Fix:     "Apply a MIG layout (berth mig apply NODE LAYOUT), or disable MIG on the GPU with the layout all-disabled.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_NOT_SINGLE", Severity: Error, Area: AreaSharing, Title: "the GPUs do not meet MIG strategy single",
			Meaning: "The strategy requires that all GPUs have MIG enabled and that all MIG devices have the same profile. Until then each MIG device is advertised by its profile, as with strategy mixed.",
			Fix:     "Apply a layout with one profile (berth mig apply NODE all-PROFILE), or set migStrategy: mixed.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_PARTIAL_COMPUTE", Severity: Warning, Area: AreaSharing, Title: "a MIG device uses only a part of its GPU instance",
			Meaning: "Compute instances of the same GPU instance share its memory without isolation, so they are not advertised.",
			Fix:     "Create one compute instance of full size in each GPU instance, as every MIG layout of Berth does (berth mig apply NODE LAYOUT).",
			Seen:    seenNode,
		},
		{
			Code: "MIG_PROFILE_UNKNOWN", Severity: Error, Area: AreaSharing, Title: "the profile of a MIG device is unknown",
			Meaning: "The driver does not report the profile, so the MIG device has no resource name and is not advertised.",
			Fix:     "Update the driver, or create the MIG device again (berth mig apply NODE LAYOUT).",
			Seen:    seenNode,
		},
		{
			Code: "MIXED_RESOURCE", Severity: Warning, Area: AreaSharing, Title: "one resource has devices of different kinds",
			Meaning: "A pod that requests the resource cannot choose which kind it gets.",
			Fix:     "Give each kind its own resource name with resourceName, sharing.resourceName or sharing.renameByDefault.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_DAEMON", Severity: Error, Area: AreaSharing, Title: "the MPS daemon of a GPU does not run",
			Meaning: "No replica of the GPU is allocated, and no claim with mode mps is prepared on it, until the daemon runs.",
			Fix:     "See the reason in the message and the daemon's log below the MPS directory (mpsRoot). The supervisor starts the daemon again.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_MEMORY_UNKNOWN", Severity: Error, Area: AreaSharing, Title: "a GPU's memory cannot be divided among MPS clients",
			Meaning: "The driver does not report how much memory the GPU has, so the default memory limit of a client cannot be computed.",
			Fix:     "Set pinnedMemoryMiB in the rule, or -1 for no limit.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_ON_MIG", Severity: Error, Area: AreaSharing, Title: "MPS is requested where MIG is enabled",
			Meaning: "Berth does not share MIG devices with MPS, so the rule is not applied.",
			Fix:     "Share the MIG devices by time-slicing (mode: timeSlicing), or disable MIG on the GPU.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_SUPERVISOR", Severity: Error, Area: AreaSharing, Title: "the MPS supervisor does not answer",
			Meaning: "No process starts or watches MPS daemons, so no MPS replica is allocated, and no claim with mode mps is prepared.",
			Fix:     "Run berth-agent mps on the node (mps.enabled of the chart), with the same MPS directory (mpsRoot) as the agent.",
			Seen:    seenNode,
		},
		{
			Code: "MPS_TOO_MANY_REPLICAS", Severity: Error, Area: AreaSharing, Title: "more MPS replicas than a server has clients",
			Meaning: "An MPS server accepts at most 48 clients (16 on GPUs before Volta).",
			Fix:     "Set replicas to 48 or less (16 before Volta), or share the GPU by time-slicing.",
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
			Meaning: "The rule has no effect for that index or UUID. The GPU was lost, or its index changed.",
			Fix:     "Correct the index or UUID in the rule; name GPUs by UUID, or select them by model.",
			Seen:    seenNode,
		},
		{
			Code: "RULE_UNUSED", Severity: Info, Area: AreaSharing, Title: "a rule applies to no device of the node",
			Meaning: "That is normal where one file serves nodes of different kinds.",
			Fix:     "Nothing, if that is intended. Otherwise correct the selector, for which the message lists what the node has, or move the rule before the rules that select its devices.",
			Seen:    seenNode,
		},
		{
			Code: "RESOURCE_TWO_APIS", Severity: Error, Area: AreaSharing, Title: "a resource would be served by the device plugin and by DRA",
			Meaning: "The devices that a rule allocates through DRA are not offered. The scheduler takes the device plugin while the node has an allocatable device of the name, and DRA otherwise, so a pod could get either.",
			Fix:     "Give the devices of the device plugin another name (resourceName in their rule), or allocate all devices of the name through one API (allocation.api).",
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
			Fix:     "Share the MIG devices with a rule of migDevices, or disable MIG on the GPU.",
			Seen:    seenNode,
		},
		{
			Code: "TIME_SLICE", Severity: Warning, Area: AreaSharing, Title: "a time slice could not be set",
			Meaning: "The GPU is shared with the time slice that it had before.",
			Fix:     "See the error in the message. It needs nvidia-smi below the driver root, and a driver of version 440 or newer.",
			Seen:    seenNode,
		},
		{
			Code: "TIME_SLICE_ON_MIG", Severity: Warning, Area: AreaSharing, Title: "a time slice is wanted for a MIG device",
			Meaning: "The driver can set the time slice of a whole GPU only. The MIG device is shared with the driver's default time slice.",
			Fix:     "Remove timeSlice from the rule.",
			Seen:    seenNode,
		},
		{
			Code: "UUID_UNUSABLE", Severity: Error, Area: AreaSharing, Title: "the UUID of a device is missing or not unique",
			Meaning: "It cannot be distinguished from others and is not advertised.",
			Fix:     "Reset the GPU or reboot the node; two GPUs with the same UUID are a fault of the hardware or of its virtualization.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_FAILED", Severity: Error, Area: AreaMIG, Title: "a MIG layout could not be applied",
			Meaning: "The message says in which state the GPU is. The agent tries again later.",
			Fix:     "See the message. A GPU that must be reset cannot be changed while a program has it open; the message then names the process, its pod and what to stop (such as DCGM, nvidia-persistenced or a display).",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_JOURNAL_CORRUPT", Severity: Warning, Area: AreaMIG, Title: "the journal of MIG changes was damaged",
			Meaning: "The file was kept with the suffix .bak. A change that was in progress is planned again. The problem ends when a new journal is written, or when all GPUs have their wanted layout.",
			Fix:     "Nothing, unless it happens again: then check the disk below /var/lib/berth (persistentDir).",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_UNREADABLE", Severity: Error, Area: AreaMIG, Title: "the journal of MIG changes cannot be read",
			Meaning: "The journal records whether a change is in progress, so MIG layouts are not changed until it can be read.",
			Fix:     "Check that the agent may read and write /var/lib/berth (persistentDir), and that the disk below it works.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_UNWRITABLE", Severity: Error, Area: AreaMIG, Title: "the journal of MIG changes cannot be written",
			Meaning: "The journal lets the agent complete a change after a crash, so MIG layouts are not changed until it can be written.",
			Fix:     "Make /var/lib/berth (persistentDir) writable, and free space on its disk.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_JOURNAL_VERSION", Severity: Warning, Area: AreaMIG, Title: "the journal of MIG changes is of another version of Berth",
			Meaning: "The file was kept with the suffix .bak. A change that was in progress is planned again.",
			Fix:     "Nothing. It happens again if agents of two versions run on the node in turn.",
			Seen:    seenNode,
		},
		{
			Code: "MIG_LAYOUTS_REFUSED", Severity: Error, Area: AreaMIG, Title: "the file of MIG layouts is invalid",
			Meaning: "The last valid one stays in use.",
			Fix:     "Correct the line and field that the message names, in the ConfigMap of migConfigMap.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_LAYOUT_DYNAMIC", Severity: Error, Area: AreaMIG, Title: "a layout names a GPU whose MIG devices claims create",
			Meaning: "A GPU has either a layout or MIG devices on demand (gpus[].dynamicMIG). It keeps serving claims; the other GPUs get the layout.",
			Fix:     "Choose a layout that names other GPUs, or remove dynamicMIG from the rule that the message names.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_LAYOUT_TWO_APIS", Severity: Error, Area: AreaMIG, Title: "with a layout, one resource would be served by the device plugin and by DRA",
			Meaning: "With the layouts that the node requests, MIG devices or whole GPUs would have a resource name that the other API serves on this node. No GPU changes its layout.",
			Fix:     "Give the devices of the device plugin another name (resourceName in a rule of gpus or migDevices), allocate all devices of the name through one API (allocation.api), or choose another layout.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_LAYOUT_UNKNOWN", Severity: Error, Area: AreaMIG, Title: "the layout that the node requests does not exist",
			Meaning: "The GPUs stay as they are.",
			Fix:     "berth mig layouts NODE lists the layouts that exist. Correct the label nvidia.com/mig.config of the Node, or define the layout.",
			Seen:    seenNode + ", condition MIGApplied",
		},
		{
			Code: "MIG_REFUSED", Severity: Error, Area: AreaMIG, Title: "a GPU cannot have the layout",
			Meaning: "The GPU does not have the profile, or cannot have as many MIG devices of it.",
			Fix:     "Choose another layout; berth mig layouts NODE lists them, and berth mig plan NODE LAYOUT shows whether one fits.",
			Seen:    seenNode + ", condition MIGApplied",
		},
	}
}
