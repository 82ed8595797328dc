// Package ledger records the holders of all devices of this node, for all front ends.
//
// It guarantees that a key has at most one holder; that a device in use by a claim, by maintenance or by an orphan is
// never granted to another holder; that a device in use in one size is never granted in another; that claims hold no
// memory slice of a GPU twice, of MIG devices that exist and of those that are about to be made; that a pod's holding is
// released when the kubelet no longer lists it and no process uses the device; that the file on disk always has the
// state either before or after a change; and that the order of all results is deterministic. It must not import a front
// end, the kubelet's readers, Kubernetes or a vendor: the state of the node is passed in as plain values (NodeView),
// without the front ends' names.
//
// # Sources and their precedence
//
// For device-plugin pods the kubelet allocates and the ledger follows. Allocate does not name a pod and there is no
// deallocation, so:
//
//   - A granted Allocate is pending until the kubelet's checkpoint lists the
//     device; then the pod's UID and container are known. A pending one that the
//     checkpoint does not show within Deps.PendingLimit is dropped: the pod failed
//     in admission. While the checkpoint is unreadable the limit is
//     Deps.UnknownLimit.
//   - A later Allocate of the same device replaces an earlier one, pending or not, when the kubelet has freed the
//     device and the ledger has not read that yet, or when an init container's device is reused within its pod;
//     otherwise it is refused (see "A device that is offered twice").
//   - A holding ends when the kubelet no longer lists it, or its pod has ended, and no process of its container runs.
//     While one runs, deletion of the pod does not end the holding.
//   - A listed device without a process (not started yet, crash loop, finished but not deleted) stays held and blocks
//     nothing: the kubelet does not offer a device that it has assigned.
//   - A process on a device that is not listed is an orphan, and blocks the device.
//   - Between two readings of the node, the kubelet's offers are used: a device in use that the kubelet considers free
//     (Offered, Acquire), and that its checkpoint does not list, is held by an orphan. The ledger reads the node again
//     before it refuses a device (Deps.Look, Deps.Assigned).
//   - While the checkpoint is missing or unreadable, or after Distrust (the kubelet has restarted), the kubelet's
//     assignments are unknown. Every device with a running container is then held by an orphan. This has no cost if the
//     kubelet still has the assignments, because it does not offer these devices.
//   - A device without a holding is granted without reading the node. While the checkpoint is not known, this requires
//     a reading of the containers since Open, TakeOver and Distrust that is at most MaxLookAge old; without one the
//     ledger is blind, and reads them first. The reading may miss a container that starts after it, whose device was
//     allocated before the ledger was opened, or whose grant was dropped: the kubelet keeps the assignment until the
//     pod ends. So the agent reads the containers several times within MaxLookAge.
//
// # A device that is offered twice
//
// The kubelet can offer a device that a running pod has: a PodResources List by any client, directly after a pod has
// ended, drops the reservation of every Allocate in progress (see the facts in internal/node/kubelet). So when Allocate
// names a device that the ledger has for a pod, and no process uses it, the checkpoint is read at that moment, outside
// the mutex. The kubelet writes it before it admits the next pod. Then:
//
//	the checkpoint ...                                              | Allocate
//	cannot be read                                                  | granted: only the kubelet can know
//	does not list the device                                        | granted
//	lists it for a pod that has ended                               | granted
//	lists it for a pod for which the kubelet itself, asked with Get,| granted: it knows of a pod's end before
//	  does not have it any more                                     |   the API server does
//	lists it for init containers only, and a later container of that| granted, once per container: the kubelet hands
//	  pod requests the resource and has no entry yet, and the       |   such a device on with a bare Allocate
//	  kubelet has not called the device free since it was granted   |
//	the same, and the pod never had a cgroup                        | granted: the Allocate is the pod's own, or the
//	                                                                |   pod was rejected in admission
//	lists it for another pod, living or unknown                     | refused (listedError), after Deps.Ask
//
// A refusal fails the admission of one pod, and makes the kubelet recompute its reservations. A device that is
// allocated twice is worse. GetPreferredAllocation prefers such devices last (the result of Offered).
//
// One case remains: two Allocates of one device at the same time. The kubelet admits pods one after the other; only the
// restart of a container whose entry was lost allocates concurrently, and there the kubelet 1.37 itself ends
// (docs/upstream).
//
// # Sizes and names
//
// The kubelet identifies devices by resource and ID only. Neither it nor the scheduler knows that a GPU, its replicas,
// its MIG devices and their replicas are the same hardware. So the ledger decides here, for holders of every kind and
// from the grant on:
//
//   - A holding blocks every device of another size on the same hardware. A GPU blocks all its devices; a replica of a
//     GPU blocks the GPU and its MIG devices, a MIG device blocks the GPU and the GPU's replicas. Replicas of one
//     device do not block one another.
//   - A device that was allocated as one resource is blocked as any other resource, with all its replicas, until all
//     are released: after a change of names the kubelet considers devices free that are in use under the old name. So
//     the kubelet's offers and entries for one resource do not apply to a holding of another.
//   - Such a block has to be reported to the kubelet (Block.Unseen), because neither it nor the scheduler counts it.
//     Unlike an orphan's, a pod's holding is not read again before it refuses: the kubelet's assignment remains even
//     without a process.
//
// The state of the node takes precedence. Two holders of different sizes, which no grant produces, are both kept, and
// Reconcile reports the conflict. A new size is safe as long as a holding without a process is in the ledger's file,
// the kubelet's file, or the agent's memory; it is lost only if all three are lost. (One other case is known: only the
// kubelet's memory has a device when another plugin fails the restart of a container after a lost checkpoint, and a
// pending grant ends with its limit.)
//
// # Claims
//
// A claim's devices are taken and released by calls alone (AcquireClaim, Release): neither the kubelet's checkpoint nor
// a process changes that. Each change of claims and maintenance is in the file when the call returns, or is not in force
// (Release and AdoptAll excepted, see there), and they are made one after the other: a call that is made again while the
// first one is under way succeeds only when the devices are in the file.
//
// A claim knows its pods: at its prepare those of its status.reservedFor, and from then on those that the kubelet records for it
// (NodeView.Claims). The kubelet does not prepare a claim again for a further pod, but it writes the pod into its record before the
// pod's sandbox is made. So a view whose record is read after its containers has the pod of each of them, without a request to the API
// server. The running containers of these pods are the claim's own; any other container on its device is reported as a conflict. Where
// only device nodes show what a container of the pod uses, it is taken to use what the claim has.
//
// The front end releases a claim. One that the kubelet's record does not list any more, and none of whose pods is alive, is released
// after ForgetLimit: the kubelet never unprepares it.
//
// A MIG device is held by its placement before it exists (gpu.Placed), so that two claims can have disjoint slices of
// one GPU. Resolve changes such a hold to the MIG device's UUID in one write, and Unresolve back. Which devices overlap
// is decided by gpu.Located.Overlaps alone. The placement of a MIG device with a UUID is that which one of its holders
// knows, else that of the last scan (Deps.Placement); while it is not known, the device overlaps with every placement of
// its GPU.
//
// At start AdoptAll comes before the first Reconcile. In the other order, when the ledger was lost, the containers of
// claims are orphans until the claims are adopted.
//
// # Why an orphan's device is also refused to its own pod
//
// Allocate does not name a pod, so a refusal can affect the orphan's own pod. The kubelet (see the facts in
// internal/node/kubelet) calls Allocate for a running pod in two cases only, both after it lost its checkpoint. First,
// a container of the pod restarts: its old process has ended by then; Acquire reads the containers again before it
// refuses, and grants. If it refuses after all, the kubelet retries with back-off. Second, the kubelet restarts and
// admits the pod again while a finished init container is not running: the kubelet requests devices for it as for a new
// pod. It gets free ones by preference. The scheduler then counts the pod once although it occupies twice as many
// devices, which is what Holding.Uncounted is for: the excess orphans have to be reported unhealthy until the pod ends.
// This Allocate is refused only when the node does not have enough free devices, and the kubelet then fails the pod.
// Granting instead could allocate a running container's GPU to another pod, since that pod's call looks the same: a GPU
// that is allocated twice is worse.
//
// # Two agents
//
// During an upgrade two agents have the file open. The one that called TakeOver last (Open does, unless Deps.Follow)
// writes; it gets an epoch higher by one. The others detect this before their next change of claims or maintenance, even
// if that needs no write, and refuse it (ErrSuperseded); their Allocates are still granted, in memory, since the kubelet
// records those. When the writer ends, the previous one finds the lock free at the next Reconcile, or when a claim is
// prepared, and takes over again.
//
// An agent that was opened as a follower reads the file when it has changed, at each Reconcile and followFile, and refuses
// claims and maintenance (ErrFollows) until TakeOver. It leaves a file that is damaged or newer to the writer. So the old
// agent prepares claims until the kubelet calls the new one. A follower that finds no writer (HasWriter) takes over at
// once.
//
// Taking over replaces the state in memory by the file and keeps the grants to pods that were made since. When the file
// cannot be read at that moment, neither the memory nor the writer changes. The wait for another agent's lock is at
// most one second, and never with the mutex held: a stopped agent delays no Allocate.
//
// # The file
//
// A file has the lowest version that has a form for its content: 2 when a device is held by placement, else 1. So an
// older agent reads it whenever that is safe. It ignores a claim's pods, requests and sharing, which change nothing about who
// holds what; it would take a placement for the whole GPU, so it refuses version 2, keeps the file as Path.bak and reads
// the devices in use elsewhere. A version 1 file needs no conversion.
//
// One JSON object per line: a header (format version, boot ID), one holding per line in the order of keys, and a
// trailer with the number of holdings and a CRC-32C of everything before. It is written to a temporary file and
// renamed, without fsync: a crash of the program loses nothing that was written to the kernel, and after a crash of the
// machine the boot ID is different, which invalidates the file, because no container survives the machine. So fsync,
// which takes a hundred times longer than the rest, has no benefit. For the same reason the best place for the file is
// a tmpfs such as /run.
package ledger
