// Package cli is the berth command: trace, gpus, topo, top, mig, classes, quota, status, fit, why, doctor, reset, uninstall, completion,
// version, and the simulator's commands.
//
// It guarantees its exit codes (0 fine, 1 a finding, 2 could not find out; see exit.go), that all output is in a fixed order, that -o
// json and -o yaml print versioned objects of api/v1alpha1, and that a missing part of a cluster leaves the others working. It
// wires packages and must not be imported by any but cmd/berth.
package cli
