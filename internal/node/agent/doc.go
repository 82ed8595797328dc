// Package agent wires the node side of Berth: hardware into the inventory, the
// kubelet's memory into the ledger, and both into what the node shows: the
// device plugin, the CDI spec, the GPUNode object, the pages on its unix socket and, where that is
// wanted, /metrics on an address.
//
// It guarantees an order: no device is advertised before the ledger has been
// compared with the kubelet and the running containers, nor, with a CDI
// strategy, before the spec on disk can inject it. Every projection is computed
// anew from inventory, ledger and config; what cannot be computed leaves the last good
// one in force and is named on the list of problems, which the log, the metrics, the
// pages and the GPUNode show alike. A shutdown removes nothing but the sockets of the pages.
//
// It guarantees that a fault reaches the kubelet although anything else hangs: between an event of
// the hardware and the device plugin's list there is no file, API or hardware call, and no lock
// that is held over one.
//
// It decides nothing itself: choosing, judging and joining belong to the pure
// rooms. Only cmd/berth-agent imports it.
package agent
