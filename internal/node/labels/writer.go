package labels

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"
)

// Writer writes labels to one place. Its methods must not be called at the same time.
type Writer interface {
	// Read returns the labels that Write put there and that are still there, including those of an earlier process.
	Read(ctx context.Context) (Labels, error)
	// Write makes these labels the agent's only ones in the place.
	Write(ctx context.Context, labels Labels) error
	// Remove removes the labels that Write put there. Having nothing to remove is not an error.
	Remove(ctx context.Context) error
	// Place names the place in messages.
	Place() string
}

// Output is where labels are written.
type Output string

// The outputs.
const (
	// OutputNode is the Node itself, by server-side apply. It needs no Node Feature Discovery.
	OutputNode Output = "node"
	// OutputFile is a file for the worker of Node Feature Discovery.
	OutputFile Output = "file"
	// OutputNodeFeature is an object for the master of Node Feature Discovery.
	OutputNodeFeature Output = "nodeFeature"
)

// DefaultDir is where Node Feature Discovery reads files from.
const DefaultDir = "/etc/kubernetes/node-feature-discovery/features.d"

// Places have the dependencies of a Writer for each output.
type Places struct {
	// Client is for OutputNode and OutputNodeFeature.
	Client   dynamic.Interface
	NodeName string
	// Namespace is where NodeFeature objects are: the agent's.
	Namespace string
	// Dir is the folder of OutputFile; default DefaultDir.
	Dir string
}

// NewWriter returns the writer of an output.
func NewWriter(output Output, places Places) (Writer, error) {
	switch output {
	case OutputFile:
		if places.Dir == "" {
			places.Dir = DefaultDir
		}
		return &fileWriter{places.Dir}, nil
	case OutputNode, OutputNodeFeature:
	default:
		return nil, fmt.Errorf("write labels: the output %q is unknown; choose %s, %s or %s", output, OutputNode, OutputFile, OutputNodeFeature)
	}
	switch {
	case places.Client == nil:
		return nil, fmt.Errorf("write labels to the output %s: there is no connection to an API server; give the agent one, or choose the output %s", output, OutputFile)
	case places.NodeName == "":
		return nil, fmt.Errorf("write labels to the output %s: the name of the node is not known; set NODE_NAME from spec.nodeName", output)
	case output == OutputNode:
		return newNodeWriter(places.Client, places.NodeName), nil
	case places.Namespace == "":
		return nil, fmt.Errorf("write labels to the output %s: the namespace is not known; set NAMESPACE from metadata.namespace", output)
	}
	return &nodeFeatureWriter{places.Client, places.NodeName, places.Namespace}, nil
}
