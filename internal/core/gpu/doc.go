// Package gpu is the vocabulary of Berth: GPUs, MIG devices, links, health
// and the snapshot of a whole node, as plain values.
//
// It guarantees that its values carry no behaviour beyond parsing, printing,
// comparing and looking up; everything above compares snapshots with ordinary
// equality of their fields. It must not import anything but the standard library: it
// is the bottom of the pure rooms.
package gpu
