// Package agent wires the node side of Berth: the hardware into the inventory, what the kubelet has allocated into the
// ledger, and both into what the node publishes: the device plugin, the CDI spec, the GPUNode object, the pages on its unix
// socket and, if it is configured, /metrics on an address.
//
// It guarantees an order: no device is advertised before the ledger was compared with the kubelet and the running
// containers, nor, with a CDI strategy, before the spec on disk can inject it. Everything that is published is computed from
// inventory, ledger and configuration. If something cannot be computed, the last version stays in force and the reason is in
// the list of problems, which the log, the metrics, the pages and the GPUNode show alike. A shutdown removes nothing but the
// sockets of the pages.
//
// It guarantees that a fault reaches the kubelet while anything else hangs: between an event of the hardware and the device
// plugin's list there is no file, API or hardware call, and no lock that is held during one.
//
// It decides nothing itself: what is chosen, judged or joined is decided by the packages of internal/core and by the packages
// that it wires. Only internal/node/agent/command and tests import it.
package agent
