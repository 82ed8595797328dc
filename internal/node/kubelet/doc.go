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
// cm/devicemanager/manager.go. The ledger's rules stand on these. TestFacts and
// TestFactsOfRestarts (kube/test/devicemanager) try them with the kubelet's own device
// manager, except where "read" says that it was only read.
//
//   - At admission each container is allocated in turn, init containers first
//     (manager.Allocate). A device that a plain init container got is reused for
//     the containers after it (devicesToReuse), first of all others. If that suffices, it
//     reaches the plugin by a bare Allocate of the same ID; if not, as must-include in
//     GetPreferredAllocation too. A sidecar's devices are never reused.
//   - Allocation comes before the check of counts: the admit handler that
//     allocates stands before the predicates (read: kubelet.go, admitHandlers). A pod can
//     therefore be rejected after its Allocate. Its entry stays in memory, and
//     mostly in the file, until the next allocation of any pod.
//   - The file is written once after all resources of one container were
//     allocated (allocateContainerResources), and after each device list of any plugin. So during
//     an Allocate it has all pods that were admitted before, and still those that have ended, which
//     the memory no longer has. When another plugin's Allocate fails, our entry is in memory and not in
//     the file, until the next device list brings it there for a pod that was rejected.
//   - There is no deallocation. A pod's entries go, all at once, when the pod is not active at
//     the next allocation, or at a PodResources List (UpdateAllocatedDevices).
//     Active excludes finished pods, and pods deleted from the API with no grace,
//     even while their processes still run (read: kubelet_pods.go, isPodInactive). A pod becomes
//     inactive before its cgroup is removed and before the API says so. List changes the memory only,
//     so the file can name finished pods for long.
//   - A device in memory is not offered again, except for reuse within its pod
//     during admission, before a container of that pod runs; with one exception, a
//     defect (docs/upstream/kubelet-list-loses-reservation.md). The kubelet reserves
//     a device (allocatedDevices) before the Allocate and notes the pod after it. A List in between
//     recomputes the reservations from the pods noted, if any pod has ended since the last time, and the
//     next pods are offered the device of a living pod until the next recomputation. The file
//     then lists it for two living pods. A List does no harm while no pod has ended, and Get never does. So an
//     Allocate of a device on which a container lives means that the kubelet has lost or dropped
//     that container's pod, or its reservation.
//   - An error from Allocate makes the kubelet recompute the reservations too; after it the device is
//     not offered again as long as its pod is active.
//   - An allocation by a pod's worker (below) during an admission ends the kubelet by a panic
//     (assignment to entry in nil map, removeContainerAllocatedResources): the worker's
//     drops the reuse map of the other pod. By then the file has what was granted. So two Allocates that
//     overlap in time never both come to an end.
//   - PodResources, List and Get, never shows a plain init container.
//   - At start the file is read once. Missing or unreadable: the kubelet goes on
//     with no memory (Start, readCheckpoint). While it runs, loss of the file has
//     no effect: the next write restores it.
//   - After a restart every pod is admitted again (read: HandlePodAdditions). An entry
//     that is remembered needs no Allocate. Without one, a container that the
//     runtime reports as running is left alone as long as not all pod sources were
//     seen (isContainerAlreadyRunning): no Allocate, no entry. A container that is
//     not running at that time, such as a finished init container, is allocated
//     again if the plugin has registered by then; if it has not, and the file was
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
