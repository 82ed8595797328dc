package cuda

import _ "embed"

// kernelName is the entry of the kernel.
const kernelName = "vector_add"

// kernel is what each thread runs: sum[i] = a[i] + b[i]. PTX 6.0 is of CUDA 9.0, and sm_50 is the oldest architecture (Maxwell) that the
// drivers of all versions since compile it for, also for every later GPU (NVIDIA's "Parallel Thread Execution ISA").
//
//go:embed vector_add.ptx
var kernel string
