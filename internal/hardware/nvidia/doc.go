// Package nvidia reads a node's NVIDIA GPUs through NVML (go-nvml's nvml.Interface) and
// through the file trees of the kernel and the driver, and says what it found in the
// vocabulary of package gpu.
//
// It guarantees that
//   - a node without a driver, with a late one, or with one that comes and goes, is a
//     snapshot with a fault and never an error;
//   - a card that is lost, hangs or lies does not change what is said of the others;
//   - a lost card keeps its identity (UUID, PCI bus ID, minor) as long as the machine
//     still has it;
//   - the pairwise PCIe questions are asked once for each pair of cards in a session, not at each scan;
//   - each GPU is read by a goroutine of its own with a deadline (Deps.CallDeadline): one that does not answer in time is
//     shown as it was last seen, with the cause NVML_TIMEOUT, and is asked again when its call has returned;
//   - the kernel's log is read from the first Watch on, and never waited for: NVML does not report every XID;
//   - a function that the installed libnvidia-ml.so does not have is not called: go-nvml
//     would end the process.
//
// Actions change what scans read: the MIG mode and the MIG devices of a card, and its compute
// mode. One that NVML refuses says what is in the way.
//
// A call about the whole node or about a pair of GPUs, Watch and the actions block as long as NVML blocks; the caller bounds them. None of
// them waits for another, except that a Suspend waits for the calls under way, and fails at its deadline with the name of the one
// that has not returned. A session with the driver counts who uses it: the next may begin while a call of the last one hangs. It must
// not import Kubernetes, and knows nothing of who reads its snapshots.
package nvidia
