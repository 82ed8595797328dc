// Package validation validates the GPUs of nodes with a pod that uses each of them: for each GPUNode whose gate waits for it, one
// NodeOperation of the kind Validate, and while that is the active operation of its node, one pod in the operator's namespace.
//
// What it guarantees:
//   - What is under way is in the NodeOperation: another operator goes on from it, after an end at any write. No step is assumed done that
//     cannot be seen.
//   - A pod is created only while no device of the GPUNode has a holder. It is removed, with its ResourceClaim, before the operation ends,
//     when the validation is not wanted any more, when somebody else gets a device before the pod is scheduled, and when somebody deletes
//     the operation.
//   - A failed operation stays with its result, and is attempted again after a pause that doubles up to 5 minutes.
//   - A pod of the same name that is not of this operation counts for nothing. It is deleted if it has Berth's label, and else reported.
//
// What wakes it: a GPUNode whose gate, devices or holders change, a NodeOperation, a validation pod, the GPUStack; but
// not what it writes itself while it follows a pod, and not what it does not read. The validation of a node costs 23
// requests, 17 of them about the NodeOperation. At rest, when all nodes are validated, it requests and writes nothing.
// It waits for the scheduler, the kubelet and the agent of the node, each of which may be away, without a limit and
// without delaying other nodes; the NodeOperation says for whom.
//
// What it writes: NodeOperations with their status, pods and ResourceClaims in the operator's namespace, Events about NodeOperations.
//
// It must not import another concern, internal/node or internal/hardware.
package validation
