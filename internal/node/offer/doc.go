// Package offer computes what a node advertises: from the inventory and the settings it derives the use of each GPU and
// MIG device, and from that the resources of the node with the devices of each.
//
// It takes three steps. Resolve returns the use that the settings ask for, and reports settings that the hardware
// cannot meet. Settle returns what is in force now: a device in use keeps its use until it is released. Place adds
// position and health to each unit, and List converts units to the kubelet's lists.
//
// It guarantees that the same input gives the same result in the same order; that a device keeps its ID as long as the
// hardware keeps its UUID; that a whole GPU and its MIG devices are never in force together; and that a held device
// does not change its resource or mode. A setting that cannot be met is a problem, not an error: the rest of the node
// is advertised. It is a pure computation: it does no I/O, reads no clock, and must not import Kubernetes, a vendor's
// library or a front end.
package offer
