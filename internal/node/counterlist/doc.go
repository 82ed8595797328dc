// Package counterlist reads which fields the configuration wants under dcgm-exporter's names: the default ones, those of a file, and
// those of a list in the configuration itself.
//
// It guarantees that a list that cannot be read, or only in part, leaves the rest in force, and that each line and each field without
// a value is in a problem with the fix or the reason. It reads the file once, of which at most [dcgm.MaxBytes] count.
//
// It must not import another package of node, or an adapter.
package counterlist
