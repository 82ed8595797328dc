// Package inventory keeps the one picture of a node's hardware that everything else is
// a projection of: it scans, judges, and tells subscribers that the picture changed.
//
// It guarantees that
//   - Scan and Watch of the Source are called by goroutines of their own, at most one of each at a
//     time, however long a call hangs;
//   - Current never blocks and never returns nil, and what it returns never changes;
//   - a new snapshot is published only when something in it is different;
//   - a subscriber, which is signalled at first, ends with the last snapshot if it reads Current after each signal;
//   - an event reaches Current and the subscribers at once, without waiting for a scan, a file or another event;
//   - what is known of the cards' health outlasts a restart of the process, where it is given a file to keep it in.
//
// It must not import Kubernetes or a vendor adapter: an adapter is handed in as a Source.
package inventory
