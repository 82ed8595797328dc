// Package offer says what a node advertises: from the inventory and the settings it computes
// as what each GPU and MIG device is given out, and from that the resources of the node with
// the devices of each.
//
// It takes three steps. Resolve says what settings and hardware want, and what of it cannot be
// had. Settle says what is in force now: a device that somebody holds keeps its use until it is
// free. Place adds place and health to each unit, and List makes the kubelet's lists of that.
//
// It guarantees that the same input gives the same answer in the same order, whatever
// the order of maps or of earlier calls; that every device keeps its id for as long as its
// silicon keeps its UUID; that no silicon is ever in force in two sizes, a whole GPU and its MIG
// devices; and that a device which is held never changes its resource or mode. A setting that
// cannot be met is a problem and never an error: the rest of the node is offered. It is a pure
// computation: it does no I/O, reads no clock, and must not import Kubernetes, a vendor's
// library or a front end.
package offer
