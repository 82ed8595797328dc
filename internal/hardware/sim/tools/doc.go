// Package tools replaces the programs of NVIDIA's driver on simulated hardware: nvidia-smi (SMI) and
// nvidia-cuda-mps-control (MPSControl).
//
// It guarantees that each of them accepts exactly the calls that Berth makes of the real program, answers with the real
// program's output and exit codes, and changes the same machine that NVML reads, so that a change made with a
// program is visible through NVML at once. Any other call fails as the real program does for a mistyped one.
//
// It must not import any package of Berth but internal/hardware/sim.
package tools
