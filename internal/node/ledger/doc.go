// Package ledger keeps who holds which piece of silicon on this node, in one
// place for all front ends.
//
// It guarantees that a key has at most one holder; that a device in use by a
// claim, by maintenance or by an orphan is never granted to anybody else; that
// a device in use in one size is granted to nobody in another; that nothing stays held once nobody knows it and no process lives on it; that the file on
// disk is at every moment either the state before or after a change; and
// that everything it hands out is in one order. It must not import a front end, the
// kubelet's readers, Kubernetes or a vendor: what happens on the node comes in as
// plain values (NodeView), and the front ends' names never get in.
//
// # Whose word counts
//
// For device-plugin pods the kubelet is the allocator and the ledger its shadow.
// Allocate names no pod and nothing is ever deallocated, so:
//
//   - A granted Allocate is pending until the kubelet's checkpoint lists the
//     device; then the pod's UID and container are known. A pending one that the
//     checkpoint does not show within Deps.PendingLimit is dropped: the pod failed
//     in admission. While the checkpoint is unreadable the limit is
//     Deps.UnknownLimit.
//   - A later Allocate of the same device takes over from an earlier one, pending
//     or not, when the kubelet has freed the device and we had not noticed, or an init
//     container's device is used again within its pod; otherwise it is refused (see "A device that is
//     offered twice").
//   - A holding ends when the kubelet no longer lists it, or its pod has ended, and no process of
//     its container lives. While one lives, deletion of the pod ends nothing.
//   - Listed without a process (not started yet, crash loop, finished but not
//     deleted) stays held and bars nobody: as long as the kubelet remembers
//     a device it offers it to nobody else.
//   - A process without being listed makes an orphan, and bars the device.
//   - Between two looks at the node, an offer tells: a device in use that the kubelet calls free (Offered,
//     Acquire), and that its checkpoint does not list, is an orphan's. Before anything is refused the ledger
//     looks again (Deps.Look, Deps.Assigned).
//   - While the checkpoint is missing or unreadable, or after Distrust (the
//     kubelet has restarted), nothing is known of what the kubelet remembers. Every
//     device with a living container is then an orphan. That costs nothing if the
//     kubelet does remember: it would not offer them.
//   - A device without a holding is granted without a look at the node. While the checkpoint is not known, that needs a look
//     at the containers since Open, TakeOver and Distrust that is at most MaxLookAge old; without one the ledger is
//     blind, and looks first. The look may miss a container that starts after it, whose device was allocated before the
//     ledger was opened, or whose grant was dropped: the kubelet remembers it until its pod ends. So the agent looks several
//     times within MaxLookAge.
//
// # A device that is offered twice
//
// The kubelet can offer a device that a living pod has: a PodResources List by any client, at a moment when some pod has
// just ended, makes it forget the reservation of every Allocate that is under way (see the facts in internal/node/kubelet). So
// when Allocate names a device that the ledger has for a pod, and no process uses it, the checkpoint is read at that
// moment, outside the mutex. The kubelet writes it before it admits the next pod. Then:
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
//	lists it for another pod, living or unknown                     | refused (ListedError), after Deps.Ask
//
// A refusal costs one pod its admission, and makes the kubelet set its reservations to what it remembers. A device given
// twice is worse. GetPreferredAllocation leaves such devices to the last (the result of Offered).
//
// One way remains: two Allocates of one device under way at the same time. The kubelet admits pods one after the other; only the
// restart of a container whose entry was lost allocates beside that, and there the kubelet 1.37 itself ends (docs/upstream).
//
// # Sizes and names
//
// The kubelet knows devices by resource and ID only. That a GPU, its shares, its
// MIG devices and their shares are the same silicon, it does not know, nor does the
// scheduler. So here the ledger decides, for holders of every kind and from the grant on:
//
//   - A holding bars every device of another size that shares its silicon. A GPU bars all
//     that is of it; a share of a GPU bars the GPU and its MIG devices, a MIG device bars
//     the GPU and the GPU's shares. Shares of one device do not bar one another.
//   - A device that was given out as one resource is barred as any other, with all its
//     shares, until nobody has any of it: after a change of names the kubelet calls free what
//     it knows to be in use under the old one. So what the kubelet offers, or lists, as one
//     resource says nothing about a holding of another.
//   - Such a bar has to be reported to the kubelet (Bar.Unseen): nobody else counts it. A
//     pod's is not looked at again before it refuses, as an orphan's is: that no process
//     lives does not free what the kubelet remembers.
//
// What the node shows is a fact all the same. Two holders of different sizes, which no grant
// leads to, are both kept, and Reconcile reports the conflict. A new size is safe as long as
// a holding without a process is in one of three places: the ledger's file, the
// kubelet's, or the agent's memory; it takes the loss of all of them to forget it. (One more
// way is known: the kubelet's memory alone has a device when another plugin fails the restart
// of a container after a lost checkpoint, and a pending grant ends with its limit.)
//
// # Why an orphan is refused to its own pod too
//
// Allocate names no pod, so a refusal can hit the orphan's own. The kubelet
// (see the facts in internal/node/kubelet) calls Allocate for a pod that runs already
// in two cases only, both after it lost its checkpoint. First, a container of the pod
// starts again: its old process is dead by then, Acquire looks again before it
// refuses, sees that, and grants; should it refuse after all, the kubelet tries again with
// back-off. Second, the kubelet restarts and admits the pod anew while a
// finished init container is not running: the kubelet asks for devices for it as
// for a stranger. It gets free ones by preference. The pod then counts once for
// the scheduler and occupies twice as much, which is what Holding.Uncounted is for:
// the excess orphans have to be reported unhealthy until the pod ends. Only
// when the node has not enough free devices is that Allocate refused, and the kubelet then
// fails the pod. Granting instead would give a running container's GPU to whoever
// asks, since the same call could come from another pod: a GPU given twice is worse.
//
// # Two agents
//
// During an upgrade two agents have the file open. The one that called TakeOver
// last (Open does, unless Deps.Follow) writes; it gets an epoch higher by one. The
// others notice before their next write, do not write, and refuse claims and
// maintenance (ErrSuperseded); their Allocates are still granted, in memory, since the
// kubelet remembers those. When the writer dies, the one before it finds its lock free at
// the next Reconcile and takes over again.
//
// Taking over replaces the memory by the file and keeps the grants to pods that were made meanwhile. When the file
// cannot be read at that moment, neither the memory nor the writer changes. The lock of another agent is waited for one
// second at most, and never with the mutex held: a stopped agent delays no Allocate.
//
// # The file
//
// One JSON object per line: a header (format version, boot ID), one holding per
// line in the order of keys, and a trailer with the number of holdings and a CRC-32C
// of everything before. It is written to a temporary file and renamed, without
// fsync: a crash of the program loses nothing that the kernel has, and after a crash of
// the machine the boot ID is another, which voids the file, as no container
// outlives its machine. So fsync, a hundred times dearer than the rest, would buy
// nothing. For the same reason the best place for the file is a tmpfs such as /run.
package ledger
