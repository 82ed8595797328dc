// Package gpulabels computes the labels about NVIDIA's GPUs: those that GPU feature discovery writes, key by key and
// value by value, and those about NVLink and about each model that Berth adds. docs/labels.md lists every label.
//
// # What it guarantees
//
// The same facts give the same labels, whatever the order of the GPUs. Every key and value is one that the API server
// accepts, whatever the driver reports. What is unknown is left out, never guessed.
//
// # Several models in one node
//
// The labels gpu.product, gpu.count, gpu.memory and the like can describe one model. They describe the model with the
// most GPUs that respond and, if several have the same number, the one whose name sorts first. As soon as a node has
// several models, including GPUs that are lost, each also has labels of its own: the loss of one removes no label of
// another model.
//
// Where the GPUs of one model are shared in different ways, the labels describe the sharing of most GPUs and, if
// several have the same number, the one with the fewest replicas.
//
// It only computes: it reads and writes nothing. It imports internal/core only.
package gpulabels

const (
	// nvidiaDomain is the domain of GPU feature discovery's labels.
	nvidiaDomain = "nvidia.com/"
	// berthDomain is the domain of labels that it does not have.
	berthDomain = "berth.dev/"
	// modelDomain is the domain of labels by model: the model is part of the domain, because the name after the slash
	// is limited.
	modelDomain = "model.berth.dev/"
)
