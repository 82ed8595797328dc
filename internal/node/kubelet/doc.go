// Package kubelet reads the state of the kubelet and the container runtime on the node: the device manager's
// checkpoint, the PodResources socket, and which container and pod a process belongs to.
//
// It only reads. It guarantees that no input can make it panic, block or grow without bound, that the order of results
// is deterministic, and that the error of an invalid file has the position. It must not import k8s.io/kubernetes, an
// API client, or another package of Berth than gpu.
//
// # Running containers
//
// A container holds its devices as long as one of its threads runs. This is read from the kernel's cgroups (see
// cgroupReader): a walk over /proc would treat a process whose first thread has ended as ended, miss one that forks and ends
// all the time, and cost more with more processes on the host. In version 1 cgroup.procs lists the processes with a
// running thread, without zombies; in version 2 "populated" is the same for a cgroup and all below it.
// TestLivingIsWhatTheKernelCounts verifies this on the running kernel.
//
// A container whose first thread has ended outlives its pod: runc reads the zombie in /proc, treats the container as
// stopped and does not kill it (tested with runc 1.1.5 and a forced deletion, TestRunningContainers).
//
// # What kubelet 1.37 does, as seen by a device plugin
//
// Read in k8s.io/kubernetes v1.37.1, pkg/kubelet; "manager" is cm/devicemanager/manager.go. The ledger's rules depend
// on these facts. TestFacts and TestFactsOfRestarts (kube/test/devicemanager) verify them with the kubelet's own device
// manager, except those marked "read", which were only read.
//
//   - At admission each container is allocated in turn, init containers first (manager.Allocate). A device of a plain
//     init container is reused for the containers after it (devicesToReuse), before all others. If these devices
//     suffice, the plugin only receives an Allocate of the same ID; if not, they are also must-include in
//     GetPreferredAllocation. A sidecar's devices are never reused.
//   - Allocation precedes the check of counts: the admit handler that allocates runs before the predicates (read:
//     kubelet.go, admitHandlers). A pod can therefore be rejected after its Allocate. Its entry remains in memory, and
//     usually in the file, until the next allocation of any pod.
//   - The file is written once after all resources of one container were allocated (allocateContainerResources), and
//     after each device list of any plugin. So during an Allocate it has all pods that were admitted before, and also
//     ended pods that are no longer in memory. When another plugin's Allocate fails, our entry is in memory and not in
//     the file, until the next device list writes it there for a pod that was rejected.
//   - There is no deallocation. A pod's entries are removed, all at once, when the pod is not active at the next
//     allocation, or at a PodResources List (UpdateAllocatedDevices). Active excludes finished pods, and pods deleted
//     from the API with no grace, even while their processes still run (read: kubelet_pods.go, isPodInactive). A pod
//     becomes inactive before its cgroup is removed and before the API shows it. List changes the memory only, so the
//     file can name finished pods for a long time.
//   - A device in memory is not offered again, except for reuse within its pod during admission, before a container of
//     that pod runs; with one exception, a defect (docs/upstream/kubelet-list-loses-reservation.md). The kubelet
//     reserves a device (allocatedDevices) before the Allocate and records the pod after it. A List in between
//     recomputes the reservations from the recorded pods, if any pod has ended since the last time, and the next pods
//     are offered the device of a running pod until the next recomputation. The file then lists it for two running
//     pods. A List has no effect while no pod has ended, and Get never has. So an Allocate of a device that a running
//     container uses means that the kubelet has lost or dropped that container's pod, or its reservation.
//   - An error from Allocate makes the kubelet recompute the reservations too; after it the device is not offered again
//     as long as its pod is active.
//   - An allocation by a pod's worker (below) during an admission ends the kubelet by a panic (assignment to entry in
//     nil map, removeContainerAllocatedResources): the worker's allocation deletes the reuse map of the other pod. At
//     that time the file has the granted devices. So two Allocates that overlap in time never both complete.
//   - PodResources (List and Get) never shows a plain init container.
//   - At start the file is read once. If it is missing or unreadable, the kubelet continues without assignments (Start,
//     readCheckpoint). While it runs, the loss of the file has no effect: the next write restores it.
//   - After a restart every pod is admitted again (read: HandlePodAdditions). A pod with an entry needs no Allocate.
//     Without one, a container that the runtime reports as running is not changed until all pod sources were read
//     (isContainerAlreadyRunning): no Allocate, no entry. A container that is not running at that time, such as a
//     finished init container, is allocated again if the plugin has registered by then; if it has not, and the file was
//     lost, the resource is unknown and the container is skipped without a message (isDevicePluginResource); if the
//     file was intact, the pod is rejected ("no healthy devices present"). So a plugin has to register at once.
//   - When a container of a forgotten pod starts again, the kubelet calls Allocate (GetDeviceRunContainerOptions): the
//     old process has ended by then. An error there delays the start (CreateContainerConfigError, retried with
//     back-off); only an error at admission fails the pod for good.
//   - GetPreferredAllocation is not called when the aligned devices (Topology Manager) are exactly as many as needed;
//     and the kubelet adds other devices when the response has too few. So an Allocate can name any device that the
//     kubelet considers free, preferred or not.
package kubelet
