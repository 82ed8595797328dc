// Package fleet counts the GPUs of many nodes: in total, by node, model, namespace and resource, and by problem.
//
// It guarantees:
//
//   - the same objects give the same answer, for any order of the nodes and pods;
//   - a GPU is counted as in the summary of its GPUNode: held when any part of it is held, free when it is healthy and not held;
//   - a device counts as free only if it can be allocated now: it is advertised, healthy, not draining and not held;
//   - a summary has at most the given number of lines and columns, and says how much it leaves out.
//
// It does no I/O but writing to a given writer, and must not import os, net, k8s.io/client-go or anything of Berth but api,
// internal/core/gpu, internal/core/phrase, internal/node/gpunode and internal/cli/term.
package fleet
