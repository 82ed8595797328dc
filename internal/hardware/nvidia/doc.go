// Package nvidia reads a node's NVIDIA GPUs through NVML (go-nvml's nvml.Interface) and through files of the kernel and the
// driver. It returns them as values of package gpu.
//
// It guarantees that
//   - a scan of a node without a driver, also of one that is installed or removed later, is a snapshot with a fault, not an
//     error;
//   - a GPU that is lost, hangs or returns wrong values does not change the results for the others;
//   - a lost GPU keeps its identity (UUID, PCI bus ID, minor) for as long as the machine has it;
//   - the PCIe path of each pair of GPUs is read once in a session, not at each scan;
//   - each GPU is read in a goroutine of its own with a deadline (Deps.CallDeadline): one that does not answer in time is
//     returned as it was last read, with the cause NVML_TIMEOUT, and is read again when its call has returned;
//   - the kernel log is read from the first Watch on, without blocking: NVML does not report every XID;
//   - a function that the installed libnvidia-ml.so does not have is not called: go-nvml would end the process.
//
// Actions change the MIG mode, the MIG devices and the compute mode of a GPU. The error of an action that NVML refuses says
// what prevents it.
//
// Calls about the whole node or about a pair of GPUs, Watch and the actions block for as long as NVML blocks; the caller bounds
// them. None of them waits for another, except that Suspend waits for the calls that are under way, and fails at its deadline
// with the name of the call that has not returned. A session with the driver counts its users: the next session may begin while
// a call of the last one hangs. The package must not import Kubernetes, the simulator or packages of internal/node.
package nvidia
