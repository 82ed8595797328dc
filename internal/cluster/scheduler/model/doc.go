// Package model keeps what the scheduler decides by: the nodes of the scheduler's snapshot with their GPUs as a fleet, the GPUs that pods
// are predicted to get, and the workload mix. All profiles of a scheduler share one Model.
//
// It guarantees
//
//   - that only nodes are computed again that have changed: in the scheduler's snapshot, in their GPUNode, or by a prediction;
//   - that a prediction holds until the GPUNode names the pod, and is then compared with it once;
//   - that decisions depend on the order of events only through the predictions and the mix;
//   - that a Copy answers as the model did at that time, whatever becomes of it.
//
// SetHardware, DropHardware, Forget, Touch and Waiting may be called by any goroutine; everything else only by the scheduling cycle, which
// is one goroutine. A Copy belongs to one goroutine, too. It does no I/O. It must not import anything of Berth but
// internal/cluster/fleetview and internal/core, and of Kubernetes' scheduler only the public framework.
package model
