// Package trace joins what many sources say about a pod's GPUs into one picture. Each fact carries its source: the pod
// spec, the kubelet's checkpoint and the device plugin's answer in it, PodResources, the pod's status, the ledger, the
// GPUNode object, the CDI spec, the container itself, and the hardware.
//
// It guarantees that the order of the evidence does not matter, that a source that was not read is listed as such with
// the reason, and that two sources that contradict each other produce a Disagreement, which is a value and not a log
// line. A missing statement counts as a statement only if the source would have to make one.
//
// It is pure: no I/O, no clock, no Kubernetes types. It must not import anything but the standard library and the other
// packages of core. internal/cli/evidence collects the evidence.
package trace
