// Package placement is the plugin of berth-scheduler that decides on which node a pod with GPUs runs.
//
// In each scheduling cycle it brings internal/cluster/scheduler/model in line with the scheduler's snapshot and asks it for the score of
// each node. Filter refuses only what the other plugins cannot see: that the kubelet would not start the pod, or would put it on a GPU
// that must not be shared. Score gives the score of the model; NormalizeScore gives the best node 100 and the others less, by a fixed
// order among equals. Reserve predicts the GPUs, so that the next pods count with them.
//
// It guarantees
//
//   - that it writes nothing to the API server in a scheduling cycle, and reads nothing from it;
//   - that a GPUNode that cannot be read, for example of a newer version, costs only its own node (follower);
//   - that pods without GPUs are placed by the other plugins, among nodes that lose no GPU by them;
//   - that a pod of which it cannot judge anything is left to the other plugins.
//
// It must not import anything of Berth but api, internal/core and internal/cluster, and of Kubernetes' scheduler only the public
// framework.
package placement
