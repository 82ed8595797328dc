// Package trace joins what many places say about a pod's GPUs into one picture, each
// fact with where it was read: the pod spec, the kubelet's checkpoint and the answer
// of the device plugin in it, PodResources, the pod's status, the ledger, the GPUNode
// object, the CDI spec, the container itself, and the hardware.
//
// It guarantees that the order of the evidence does not matter, that a place that
// was not read is said to be not read, with the reason, and that two places that do
// not say the same give a Disagreement: a value, not a log line. Silence counts as a
// statement only where the place would have to speak.
//
// It is pure: no I/O, no clock, no Kubernetes types. It must not import anything but
// the standard library and other pure rooms. Collecting evidence is the business of
// internal/cli/evidence.
package trace
