// Package shared answers placement's questions about many nodes: a cluster has thousands of nodes, but few distinct topologies.
//
// A Cache gives nodes of equal form (placement.FormOf) one Topology, which prepares one placement.Node for all of them and remembers
// its answers by the question: the available GPUs, those that must be part of the answer, and the number. A scheduler gets the
// Topology of a node when its GPUNode changes; per pod and node it asks Choose, compares nodes by Answer.Score, and sees in Before and
// After what a choice costs the requests that follow.
//
// As in the device plugin, GPUs that can serve only when no better ones are left, such as degraded ones, come in by must: while fewer
// than n healthy GPUs are free, ask for n of all free ones that must include the healthy. GPUs in MIG mode or with replicas are not
// available as whole GPUs.
//
// It guarantees that an answer is the one of placement.NewNode for the same arguments, whatever was asked or evicted before; that the
// memory of prepared topologies and answers is bounded by Options; that a repeated question computes nothing, takes no lock and does not
// allocate while the topology stays prepared; and that all of its types can be used by several goroutines. It does no I/O, reads no clock,
// and must not import anything but the standard library, internal/core/gpu and internal/core/placement.
package shared
