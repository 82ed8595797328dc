// Package deviceplugin is the front end that speaks the kubelet's device plugin API,
// v1beta1: one server with a socket of its own for each resource that the node offers.
//
// # What it guarantees
//
// Allocate and GetPreferredAllocation answer from an immutable view in memory, without a
// hardware call and without a lock that is held while anything waits. The ledger may read files
// ([Deps.Ledger]): the kubelet's checkpoint and cgroups, when one of the devices is not known to be
// free, and it makes a folder for the mount that marks the container. ListAndWatch reads none. Every open ListAndWatch stream sees
// every change, since the device list is a versioned value that each stream compares with
// what it has sent, never a message that streams could take from one another. A cancelled
// stream ends at once. A change to one resource touches no other: neither its socket nor
// its registration, and nothing is sent on its stream. Nor is anything sent when only the
// policy or the features change, which the kubelet does not see.
//
// # Which devices a container gets
//
// Whole cards are chosen for their links, by [Chooser]. Where one resource has several devices
// of a card, or MIG devices, the policy of [State] says from which card each is taken,
// counting what of the resource is not free as its load; and among MIG devices of a card
// that are shared themselves, the same policy again. Two shares of one container are of two
// cards if the policy is distributed and two cards have any free. If they are not, the
// container gets them all the same, and [Deps.Told] hears of it.
//
// A degraded device is chosen when no healthy one is left, or when the healthy ones are MPS replicas of several GPUs.
//
// A container can be the client of one MPS daemon only, and each card has its own. So MPS
// shares are preferred from one card, and an Allocate that mixes cards is refused with that reason;
// so is one for several devices of an offer that refuses many. What a client needs besides the
// device ([offer.Injection]) goes the way of the device: as a CDI device, or as variables and mounts.
//
// # One path, one registration
//
// A kubelet (1.37) keeps one endpoint per resource and socket path. If it is asked to
// register a path that it is still connected to, it answers "already connected" and forgets
// the connection that it had: the path is dead to it for good. So a path is registered
// at most once here. Each attempt listens on a new path,
//
//	<KubeletDir>/device-plugins/berth-<resource>-<instance>[.<attempt>].sock
//
// and only when the kubelet has taken it is the endpoint before it closed. The kubelet then
// promotes the one that remains and never sees the resource without a plugin. An attempt
// is made when kubelet.sock is another than the one last registered with, when our own
// socket has vanished from the directory, and when the kubelet has ended all our streams.
// The kubelet empties the directory when it starts; all of this is a look at what is
// there, for which events from the directory are only a reason to look.
//
// # Old and new agent
//
// An upgrade starts the new agent beside the old one. The kubelet believes the last list of
// either stream, so only one of them may speak. The instance in the path is in the order of
// the agents' starts, and each server also serves grpc.health.v1: SERVING for its
// resource means that it speaks, that is, it has the kubelet's stream and no newer instance
// speaks. Every instance watches the others found in the directory, and
//
//   - while a newer one speaks, sends nothing and does not register. Its streams stay open,
//     so that the kubelet can go back to it at once should the newer one die. When it is
//     stopped itself, it stays for the second in which a call of the kubelet's could still
//     be on its way;
//   - when an older one falls silent or dies, sends its list again, for whatever the older
//     one may have said last (and once more two seconds later: kubelets before 1.37 mark the
//     resource unhealthy, or close our own stream too, when the old one ends);
//   - when a newer one dies, registers again.
//
// Whoever can make a socket in the directory, which is root, can silence an agent so.
//
// A socket appears under its name only when somebody listens on it (it is bound under
// another name and renamed), so a name that refuses a connection is a dead agent's and is
// removed.
//
// # Shutdown
//
// A shutdown lets running calls end, then ends the streams, by which the kubelet learns of
// it. It removes nothing: a stopped agent and a killed one leave the same behind, and the
// next one clears it. [Remove] does so for an uninstall.
//
// # Devices that vanish
//
// A device that is no longer offered is first reported Unhealthy and leaves the list some
// seconds later, because a kubelet that is just allocating a device reads it from its last
// list after Allocate has answered, and ends with a nil pointer if it is not there.
//
// It must not import another front end, the inventory, a vendor's library or CDI: what it
// needs of them comes in through [Deps].
package deviceplugin
