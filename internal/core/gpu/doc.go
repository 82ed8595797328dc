// Package gpu defines the types that all other packages share: GPUs, MIG devices, links, health, and the snapshot of a whole
// node.
//
// It guarantees that its values are plain data, with methods that parse, print, compare and look up. It must not import anything
// but the standard library.
package gpu
