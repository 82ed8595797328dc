// Package handover keeps each GPU in at most one of two APIs: the list of the device plugin, and the ResourceSlices.
//
// It guarantees that the device plugin lists a GPU only while no slice has it, as this agent has last read or written the slices, and
// that a slice with a GPU is written only after the kubelet was seen not to count the GPU while the device plugin does not list it. Which
// GPUs slices may have is on disk before such a slice is written, so it outlasts the agent and a reboot: at the start of an agent, the
// device plugin lists the other GPUs at once, also while the API server does not respond.
//
// It reports devices that the kubelet counts, of whichever device plugin, although a slice has their GPU, and the resource names that it
// counts, so that those that both APIs serve get a taint.
//
// What wakes it: a GPU that is to be published and may still be counted; while slices have GPUs, a look at the kubelet every 5 s. What it
// writes: dra-published.json, and the problems of the source "handover". What it never waits for: the API server, the driver. Advertise
// waits for nothing; Publish and Read, which the publisher of the slices calls, wait for the disk.
package handover
