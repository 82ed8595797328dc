// Package replay places the pods of a cluster's trace by the code that the scheduler decides with, without a cluster.
//
// It reads node and pod lists in the openb format, makes arrivals of them by the protocol of "Beware of Fragmentation" (USENIX
// ATC 2023), and measures how much of the GPUs each policy allocates. The policies of that publication are here as baselines;
// nothing decides by them.
//
// It guarantees that a seed gives the same result on any machine, whatever the order of the node list and the number of runs
// at the same time, and that bad input is refused with file, line, column, value and what is allowed.
//
// The package reads no file and no clock by itself. It must not import anything but the standard library,
// internal/core/fleet and golang.org/x/sync.
package replay
