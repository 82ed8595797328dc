package problem

// gateProblems are the problems of the gate that keeps pods away until a node is validated.
func gateProblems() []Problem {
	return []Problem{
		{
			Code: "GATE_GPU_MISSING", Severity: Error, Area: AreaValidation, Title: "the driver does not answer for each GPU of the PCI bus",
			Meaning: "The node has more GPUs than the driver has found, so it is not validated and accepts no pods while no pod uses a GPU. A GPU that another driver has, such as vfio-pci, does not count.",
			Fix:     "See the kernel log of the node (dmesg) for the GPU that the driver could not start, and reboot the node; if the GPU is missing again, power the node off and on or have it examined.",
			Seen:    seenGate,
		},
		{
			Code: "GATE_HELD_BY_POD", Severity: Error, Area: AreaValidation, Title: "a pod holds a GPU of a node that is not validated",
			Meaning: "The node accepts no other pods until it is validated, and a validation needs all of its GPUs. A pod that got a GPU after the taint was set, or after a validation had failed, opens nothing.",
			Fix:     "End the pod, which berth gpus shows. If it tolerates the gate's taint, take the toleration out of it (one with operator Exists and no key tolerates each taint). The operator validates the node when its GPUs are free.",
			Seen:    seenGate,
		},
		{
			Code: "GATE_NO_OPERATOR", Severity: Error, Area: AreaValidation, Title: "no operator validates the node",
			Meaning: "The node has waited for its validation for longer than gate.timeout. With gate.onTimeout hold it accepts no pods until an operator has validated it; with open it accepts them.",
			Fix:     "See that the operator runs and is not refused: kubectl -n NAMESPACE get deployment berth-operator, kubectl get nodeoperations. To go on without it, set gate.onTimeout to open, or gate.mode to report.",
			Seen:    seenGate,
		},
		{
			Code: "GATE_SETTINGS", Severity: Warning, Area: AreaValidation, Title: "the settings of the gate cannot be read",
			Meaning: "The last settings stay in force; an agent that has none enforces the gate with its defaults.",
			Fix:     "See the error in the message. The settings are in the ConfigMap berth-stack of the release: helm upgrade writes it again.",
			Seen:    seenNode,
		},
		{
			Code: "VALIDATE_POD_FAILED", Severity: Error, Area: AreaValidation, Title: "the validation pod has ended without a result",
			Meaning: "The pod did not run, or a container of it was ended before it had written a result: by a lack of memory, by its time limit, or by the kubelet. The operator makes it again after a pause.",
			Fix:     "The message says what the kubelet reported. See kubectl -n NAMESPACE get events, and the log of the pod while it exists.",
			Seen:    seenGate,
		},
	}
}
