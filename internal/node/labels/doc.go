// Package labels says what a node's GPUs are in labels of the node, and puts them where
// the scheduler finds them.
//
// Build computes the labels from a snapshot and from the use that each device is in: those that GPU
// feature discovery writes, key by key and value by value, and Berth's own. A Writer puts them on
// the Node itself, into a file for Node Feature Discovery, or into a NodeFeature object. docs/labels.md lists every label.
//
// # What it guarantees
//
// The same facts give the same labels, whatever the order of cards and units. Every key and value is one
// that the API server takes, whatever the driver says. What is not known is absent, never
// guessed. Only Remove removes labels, and none but those that Write wrote; a nodeapi.Publisher decides when to write.
//
// # Several models in one node
//
// The labels gpu.product, gpu.count, gpu.memory and their like have room for one model. They speak of the model with
// the most cards that answer, of equals the one whose name sorts first. Each model has labels of
// its own beside them as soon as a node has several, a card that is lost included: its loss takes
// away no label of another model.
//
// Where the cards of one model are shared unlike each other, the sharing of most cards counts, of
// equals the one with the fewest replicas.
//
// # What it must not import
//
// Any package of Berth but api/, internal/core/gpu, internal/node/nodeapi and internal/node/offer, any of Kubernetes but apimachinery and client-go,
// and the library of a vendor.
//
// # Access
//
// On the Node: get and patch on nodes. As NodeFeature: get on nodes (for the owner reference), and get, create, update
// and delete on nodefeatures.nfd.k8s-sigs.io in the agent's namespace. As a file: none.
package labels
