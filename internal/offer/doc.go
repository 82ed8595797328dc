// Package offer says what a node advertises: from the inventory and a few
// settings it computes the resources of the node and the devices of each.
//
// It guarantees that the same snapshot and settings give the same offers in the same
// order, whatever the order of maps or of earlier calls, and that every device keeps its
// id for as long as its silicon keeps its UUID. It is a pure computation: it does no I/O,
// reads no clock, and must not import Kubernetes, a vendor's library or a front end.
package offer
