// Package inventory keeps the state of a node's GPUs that everything else is computed from: it scans the hardware of
// each vendor, judges the health of the GPUs, and signals subscribers when something changed.
//
// It guarantees that
// - Scan and Watch of each Source are called by goroutines of their own, at most one of each at a time, however long a
// call hangs;
// - a vendor that hangs, fails, panics, disappears or returns invalid data delays, hides and changes nothing of another
// vendor: each has its own loop, deadline and back-off, and is withdrawn when it panics;
// - Current never blocks and never returns nil, and what it returns never changes;
// - a new snapshot is published only when something in it is different;
// - a subscriber, which is signalled at first, ends with the last snapshot if it reads Current after each signal;
// - an event reaches Current and the subscribers immediately, without waiting for a scan, a file or another event;
// - the health of the GPUs survives a restart of the process if Deps.Keep names a file.
//
// The poll interval, an event, Refresh and Report wake a loop. It writes the health file, in a goroutine of its own,
// and waits for no file, API or kubelet. It must not import Kubernetes or an adapter: adapters are passed as Sources.
package inventory
