// Package topview draws the samples of GPUs for berth top: a row for each GPU and MIG device of one node, or for each of several nodes.
//
// It guarantees:
//
//   - who holds a device and its health come first and are the last to be shortened or left out in few columns;
//   - the MIG devices and pods of a GPU follow their GPU in every order;
//   - the same samples give the same rows, for any order of the nodes.
//
// It does no I/O but writing to a given writer, and must not import os, net, k8s.io/client-go or anything of Berth but api,
// internal/core/gpu and internal/cli/term.
package topview
