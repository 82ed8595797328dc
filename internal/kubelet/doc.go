// Package kubelet reads what the kubelet and the container runtime left on the
// node: the device manager's checkpoint, the PodResources socket, and which
// container and pod a process belongs to.
//
// It only reads. It guarantees that nothing it reads can make it panic, block
// or grow without bound, that results are in one order, and that a file which
// makes no sense gives an error that says where. It must not import
// k8s.io/kubernetes, an API client, or another room than gpu.
//
// # Who lives
//
// A container holds its devices as long as a thread of it lives. The kernel's
// cgroups say so (see Cgroups): a walk over /proc takes a process whose first thread
// has ended for dead, misses one that forks and ends all the time, and costs more the
// more processes the host has. In version 1 cgroup.procs lists the processes with a
// living thread, zombies left out; in version 2 "populated" says the same of a cgroup and
// all below it. TestLivingIsWhatTheKernelCounts tries this on the running kernel.
//
// A container whose first thread has ended survives its pod: runc reads the zombie
// in /proc, takes the container for stopped and does not kill it (tried with runc
// 1.1.5 and a forced deletion, TestLivingContainers).
//
// # What kubelet 1.37 does, as far as a device plugin can tell
//
// Read in k8s.io/kubernetes v1.37.1, pkg/kubelet; "manager" is
// cm/devicemanager/manager.go. The ledger's rules stand on these.
//
//   - At admission each container is allocated in turn, init containers first
//     (manager.Allocate). A device that a plain init container got is reused for
//     the containers after it (devicesToReuse): it reaches the plugin as a second
//     Allocate of the same ID, and as must-include in GetPreferredAllocation.
//   - Allocation comes before the check of counts: the admit handler that
//     allocates stands before the predicates (kubelet.go, admitHandlers). A pod can
//     therefore be rejected after its Allocate. Its entry stays in memory, and
//     mostly in the file, until the next allocation of any pod.
//   - The file is written once after all resources of one container were
//     allocated (allocateContainerResources), and after each device list. When
//     another plugin's Allocate fails, our entry is in memory but not in the file.
//   - There is no deallocation. A pod's entries go when the pod is not active at
//     the next allocation, or at a PodResources List (UpdateAllocatedDevices).
//     Active excludes finished pods, and pods deleted from the API with no grace,
//     even while their processes still run. List changes the memory only, so the
//     file can name finished pods for long.
//   - A device in memory is never offered again, except for reuse within its pod
//     during admission, before a container of that pod runs. So an Allocate of a
//     device on which a container lives means that the kubelet has lost or dropped
//     that container's pod.
//   - At start the file is read once. Missing or unreadable: the kubelet goes on
//     with no memory (Start, readCheckpoint). While it runs, loss of the file has
//     no effect: the next write restores it.
//   - After a restart every pod is admitted again (HandlePodAdditions). An entry
//     that is remembered needs no Allocate. Without one, a container that the
//     runtime reports as running is left alone as long as not all pod sources were
//     seen (isContainerAlreadyRunning): no Allocate, no entry. A container that is
//     not running at that time, such as a finished init container, is allocated
//     anew if the plugin has registered by then; if it has not, and the file was
//     lost, the resource is unknown and the container is passed over in silence
//     (isDevicePluginResource); if the file was intact, the pod is rejected ("no
//     healthy devices present"). So a plugin has to register at once.
//   - When a container of a forgotten pod starts again, the kubelet calls Allocate
//     (GetDeviceRunContainerOptions): the old process is dead by then. An error
//     there delays the start (CreateContainerConfigError, tried again with
//     back-off); only an error at admission fails the pod for good.
//   - GetPreferredAllocation is not asked when the aligned devices (Topology
//     Manager) are exactly as many as needed; and the kubelet fills up from what
//     is left when the answer is short. So an Allocate can name any device that
//     the kubelet thinks free, preferred or not.
package kubelet
