// Package tools stands in for the programs of NVIDIA's driver on simulated hardware: nvidia-smi (SMI)
// and nvidia-cuda-mps-control (MPSControl).
//
// It guarantees that each of them understands exactly the calls that Berth makes of the real program,
// answers with its words and exit codes, and changes the same state directory that NVML
// reads, so that what was done with a program shows through NVML at once. Anything else
// is refused as the real program refuses a mistyped call.
//
// It must not import anything of Berth but internal/hardware/sim.
package tools
