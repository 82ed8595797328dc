// Package cli is the berth command: trace, gpus, topo, top, mig, classes, quota, status, fit, why, doctor, reset, uninstall, version, and
// the simulator's commands.
//
// It guarantees its exit codes (0 success; 1 sources disagree, something was not found, was refused or has a problem; 2
// wrong usage, or mig, fit or doctor could not determine the result), that all output is in a fixed order, that -o json and
// -o yaml print versioned objects of api/v1alpha1, and that a missing part of a cluster leaves the others working. It
// wires packages and must not be imported by any but cmd/berth.
package cli
