// Package deviceplugin is the front end for the kubelet's device plugin API, v1beta1: one server with its own socket for each resource
// that the node advertises.
//
// # What it guarantees
//
// Allocate and GetPreferredAllocation answer from an immutable view in memory, without a hardware call and without a lock that is held
// while anything waits. The ledger may read files ([Deps.Ledger]): the kubelet's checkpoint and cgroups, when one of the devices is not
// known to be free. ListAndWatch reads none. Every open ListAndWatch stream sends every change: the device list is a versioned value that
// each stream compares with what it has sent, never a message that one stream could take from another. A cancelled stream ends at once. A
// change to one resource affects no other: neither its socket nor its registration, and nothing is sent on its stream. Nor is anything
// sent when only the policy or the features change, which the kubelet does not see.
//
// # What wakes it
//
// Signals of the hardware, the ledger and the rest of [State]; events of the sockets' directory, which is also polled; streams that open
// or end; peers that change.
//
// # Which devices a container gets
//
// Whole GPUs are chosen for their links, by [chooser]. Where one resource has several devices of a GPU, or MIG devices, the policy of
// [State] decides from which GPU each is chosen, where the load of a GPU are its devices of the resource that are not free; and among MIG
// devices of a GPU that are shared themselves, the same policy again. With the policy distributed, two replicas of one container are of
// two GPUs if two have any free. If they are of one, the container gets them all the same, and [Deps.Warn] is called.
//
// A degraded device is chosen when no healthy one is left, or when the healthy ones are MPS replicas of several GPUs.
//
// A container can be the client of one MPS daemon only, and each GPU has its own. So MPS replicas are preferred from one GPU, and an
// Allocate that combines GPUs is refused with that reason; so is one for several devices of an offer that refuses many. What a client
// needs besides the device ([offer.Injection]) is injected in the same way as the device: as a CDI device, or as variables and mounts.
//
// # One path, one registration
//
// A kubelet (1.37) keeps one endpoint per resource and socket path. If it is asked to register a path that it is still connected to, it
// answers "already connected" and drops the connection that it had: it can never use that path again. So a path is registered at most
// once here. Each attempt listens on a new path,
//
//	<KubeletDir>/device-plugins/berth-<resource>-<instance>[.<attempt>].sock
//
// and the previous endpoint is closed only after the kubelet has accepted the new one. The kubelet then uses the one that remains, and
// at no time has the resource no plugin. An attempt is made when kubelet.sock is another than the one last registered with, when the
// socket has been removed from the directory, and when the kubelet has ended all streams. The kubelet empties the directory when it
// starts. All of this follows from the present state of the directory; its events only wake the loop.
//
// # Old and new agent
//
// An upgrade starts the new agent beside the old one. The kubelet uses the last list of either stream, so only one of them may send. The
// instance in the path is in the order of the agents' starts, and each server also serves grpc.health.v1: SERVING for its resource means
// that it is active, which is that it has the kubelet's stream and no newer instance is active. Every instance watches the others found
// in the directory, and
//
//   - while a newer one is active, sends nothing and does not register. Its streams stay open, so that the kubelet can return to it at
//     once if the newer one ends. When it is stopped itself, it waits for the second in which the kubelet could still send a call;
//   - when an older one becomes inactive or ends, sends its list again, since the older one may have sent another list last (and once
//     more two seconds later: kubelets before 1.37 mark the resource unhealthy, or close this stream too, when the old one ends);
//   - when a newer one ends, registers again.
//
// Only root can make a socket in the directory, and can stop an agent from sending in this way.
//
// A socket appears under its name only when its owner listens (it is bound under another name and renamed), so a name that refuses a
// connection belongs to an agent that has ended, and is removed.
//
// # Shutdown
//
// A shutdown lets running calls end, then ends the streams, by which the kubelet notices it. It removes nothing: a stopped agent and a
// killed one leave the same files behind, and the next one removes them. [Remove] does so for an uninstall.
//
// # Devices that vanish
//
// A device that is no longer offered is first advertised as unhealthy and leaves the list some seconds later, because a kubelet that is
// just allocating a device reads it from its last list after Allocate has answered, and panics with a nil pointer if it is not there.
//
// It must not import another front end, the inventory, a vendor's library or CDI: what it needs of them comes in through [Deps].
package deviceplugin
