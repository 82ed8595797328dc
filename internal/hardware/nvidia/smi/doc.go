// Package smi runs the driver's nvidia-smi for what NVML has no call for: the time slice of a GPU, its reset, and the
// device nodes of new MIG devices.
//
// It guarantees that
// - only GPU UUIDs and fixed words become arguments, and no shell reads them;
// - the program gets no environment of this process, and no standard input;
// - at most one runs at a time, for a bounded time, and the kept part of its output is bounded;
// - a call returns in time even when the program cannot be killed, which happens while the driver hangs; later calls
// then fail with that reason until it has ended.
//
// A GPU reset fails while any program has the driver open, including NVML in this process: the adapter must be
// suspended during the reset (nvidia.Adapter.Suspend).
//
// Beside the MPS supervisor it is the only package that may import os/exec. It must not import anything of Berth but
// gpu.
package smi
