// Package sim is simulated GPU hardware. It implements go-nvml's nvml.Interface and maintains the file tree of a
// machine with NVIDIA's driver (libraries, firmware, tools, /proc, /sys, /dev), both from one state directory. All code
// of Berth above it is the code that runs on a real node, and faults are injected where real ones appear.
//
// It guarantees:
//   - A machine is the same after a restart, and for every process that opens its directory.
//   - Inject, Clear, resets and changes of MIG and settings are atomic: state.json is replaced by rename, and that is
//     the only commit point. The event log and the file tree are derived from it; after a crash, the next process that
//     opens the directory completes them.
//   - Every event set that was registered for an event before it happened receives it, in every process.
//   - The kernel log, root/dev/kmsg, has a line for each XID, and only grows.
//   - A call that is not simulated returns ERROR_NOT_SUPPORTED and never panics.
//   - Everything is safe for concurrent use, within a process and between processes.
//
// Limitation: the calls of go-nvml whose name ends in V and that return a "Handler" value go straight to the C library,
// whichever library returned the handle. Here they return an empty handler, and a call on it terminates the process
// unless a real libnvidia-ml is loaded. Use the plain calls instead (GetGpuFabricInfo, GetGpuInstanceProfileInfo).
//
// It must not import any package of Berth but internal/hardware/sim/profile, because the packages above are tested
// against it.
package sim

//go:generate go run ./internal/gen
