// Package complete suggests the arguments and the values of flags of berth in a shell, and makes the scripts for shells and for kubectl.
//
// It guarantees that a suggestion takes no longer than its limit, that a cluster, a machine or a kubeconfig that cannot be read gives no
// suggestion and no text in the shell, and that an argument which is no file is not completed with file names. The clusters and the
// machines are behind [Reader], which the caller implements. It must not import any package of Berth but internal/cli/term,
// internal/cli/usage, internal/cluster/replay and internal/hardware/sim.
package complete
