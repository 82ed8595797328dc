// Package cli is the berth command: trace, gpus, topo, top, mig, doctor, reset, version, and the simulator's commands.
//
// It guarantees its exit codes (0 well, 1 something disagrees, was not found, is refused or has
// a problem, 2 wrong usage, or that mig or doctor could not find out), that everything printed is in a fixed order, that -o json and -o yaml
// print versioned objects of api/v1alpha1, and that a missing part of a cluster leaves
// the others working. It wires rooms and must not be imported by any but cmd/berth.
package cli
