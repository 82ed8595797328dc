// Package sim is simulated GPU hardware: it answers go-nvml's nvml.Interface and keeps the
// file tree of a machine with NVIDIA's driver (libraries, firmware, tools, /proc, /sys,
// /dev), both from one state directory, so that every line of Berth above it is the code
// that runs on a real node, and a fault is injected where a real one appears.
//
// What it guarantees:
//   - A machine is the same after a restart, and for every process that opens its directory.
//   - Inject, Clear, resets and changes of MIG and settings are atomic: state.json is replaced by
//     rename, and it is the only commit point. The event log and the file tree follow from it;
//     whoever opens the directory after a crash completes what was left undone.
//   - Each event is seen by each event set that was registered for it before it happened, in
//     any process.
//   - The kernel's log, root/dev/kmsg, has a line for each XID, and only grows.
//   - A call that is not simulated answers ERROR_NOT_SUPPORTED and never panics.
//   - Everything is safe for concurrent use, in one process and between processes.
//
// What it cannot do: the calls of go-nvml whose name ends in V and that return a "Handler" value go
// straight into the C library, whoever made the handle. They return an empty handler here,
// and a call on that handler ends the process unless a real libnvidia-ml is loaded. Use the
// plain calls (GetGpuFabricInfo, GetGpuInstanceProfileInfo) instead.
//
// It must not import anything of Berth but internal/hardware/sim/profile: what is above is tested against it.
package sim

//go:generate go run ./internal/gen
