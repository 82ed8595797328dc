// Package doctor checks a node from the driver upwards: the kernel module, libraries, device
// nodes, CDI specs, the container runtime, the kubelet, the agent, and what the API has of it.
//
// It guarantees that nothing is changed and no program is run; that the hardware itself is not
// asked, so that a hung driver does not hang a check; that every wait and everything that is read
// is bounded; that a place which cannot be read is a finding and hides no other; that each
// problem has a code of internal/core/problem; and that the same node gives the same report. Files
// below a root are looked up in it, links included. It must not import a front end, the
// inventory, or NVML.
package doctor
