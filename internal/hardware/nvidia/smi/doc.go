// Package smi runs the driver's nvidia-smi for what NVML has no call for: the time slice of a GPU, its
// reset, and the device nodes of new MIG devices.
//
// It guarantees that
//   - nothing but a GPU's UUID and a known word gets from its callers into the arguments, and no shell reads them;
//   - the program gets no environment of this process, and no standard input;
//   - at most one runs at a time, for a bounded time, and what is kept of its output is bounded;
//   - a call returns in time even when the program cannot be killed, which happens while the driver hangs; later
//     calls then fail with that reason until it has ended.
//
// A GPU reset fails while any program has the driver open, NVML in this process included: the adapter has
// to be suspended meanwhile (nvidia.Adapter.Suspend).
//
// Beside the MPS supervisor it is the only package that may import os/exec. It must not import anything of Berth but gpu.
package smi
