// Package doctor checks a node from the driver upwards: the kernel module, libraries, device nodes, CDI specs, the
// container runtime, the kubelet, the agent, and the node's API objects.
//
// It guarantees that
//
//   - it changes nothing, runs no program, and does not call the driver, so that a hung driver does not block a check;
//   - every wait and every read is bounded;
//   - a source that cannot be read is a finding and hides no other;
//   - each problem has a code of internal/core/problem;
//   - the same node gives the same report.
//
// Files below a root are looked up within it, including links. It must not import a front end, the inventory, or NVML.
package doctor
