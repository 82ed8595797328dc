// Package labels publishes labels about a node's GPUs where the scheduler finds them.
//
// Build merges the labels that each [Vendor] computes about its GPUs, from a snapshot and the use that each device is in, with
// the numbers of healthy and unhealthy GPUs. A [Writer] writes them to the Node, into a file for Node Feature
// Discovery, or into a NodeFeature object; the [Syncer] of the agent decides what is written. docs/labels.md lists every label.
//
// # What it guarantees
//
// The same facts give the same labels, whatever the order of GPUs and units. A vendor sees its own GPUs only, and changes no
// label of another. What is unknown is left out, never guessed. Only Remove removes labels, and only those that Write
// wrote; a nodeapi.Publisher decides when to write.
//
// # What it must not import
//
// Any package of Berth but api/, internal/core/gpu, internal/core/labelset, internal/node/nodeapi, internal/node/offer and
// internal/node/signal, any of Kubernetes but apimachinery and client-go, and the library of a vendor.
//
// # Access
//
// On the Node: get and patch on nodes. As NodeFeature: get on nodes (for the owner reference), and get, create, update
// and delete on nodefeatures.nfd.k8s-sigs.io in the agent's namespace. As a file: none.
package labels
