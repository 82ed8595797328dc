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
//     or not: the kubelet has freed the device and we had not noticed, or an init
//     container's device is used again within its pod.
//   - A holding ends when the kubelet no longer lists it and no process of its
//     container lives. Deletion of the pod alone ends nothing.
//   - Listed without a process (not started yet, crash loop, finished but not
//     deleted) stays held and bars nobody: as long as the kubelet remembers
//     a device it offers it to nobody else.
//   - A process without being listed makes an orphan, and bars the device.
//   - Between two looks at the node, an offer tells: the kubelet offers nothing that it
//     remembers, so a device in use that it calls free (Offered, Acquire) is an
//     orphan's. Before anything is refused the ledger looks again (Deps.Look).
//   - While the checkpoint is missing or unreadable, or after Distrust (the
//     kubelet has restarted), nothing is known of what the kubelet remembers. Every
//     device with a living container is then an orphan. That costs nothing if the
//     kubelet does remember: it would not offer them.
//
// # Sizes and names
//
// The kubelet knows devices by resource and ID only. That a card, its shares, its
// MIG devices and their shares are the same silicon, it does not know, nor does the
// scheduler. So here the ledger decides, for holders of every kind and from the grant on:
//
//   - A holding bars every device of another size that shares its silicon. A card bars all
//     that is of it; a share of a card bars the card and its MIG devices, a MIG device bars
//     the card and the card's shares. Shares of one device do not bar one another.
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
// (see the facts in internal/kubelet) calls Allocate for a pod that runs already
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
