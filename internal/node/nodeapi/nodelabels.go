package nodeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// migFieldManager owns the label nvidia.com/mig.config.state; the labels about the GPUs have another one.
const migFieldManager = "berth-agent-mig"

// stateInterval is the least time between two writes of the label of the MIG state: a change that is about to begin
// waits for its write.
const stateInterval = 100 * time.Millisecond

// Nodes is the resource of the Nodes.
func Nodes(api dynamic.Interface) dynamic.ResourceInterface {
	return api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
}

// bareNode is a Node that has nothing but a name.
func bareNode(name string) *unstructured.Unstructured {
	node := &unstructured.Unstructured{}
	node.SetAPIVersion("v1")
	node.SetKind("Node")
	node.SetName(name)
	return node
}

// NodeLabels are the labels of a Node that one field manager owns. A label that is not applied again is removed by the
// API server, and no other's is.
type NodeLabels struct {
	API          dynamic.Interface
	NodeName     string
	FieldManager string
}

// Read returns the labels that the managed fields attribute to the field manager. A label that another client changed
// is not among them.
func (l NodeLabels) Read(ctx context.Context) (map[string]string, error) {
	node, err := Nodes(l.API).Get(ctx, l.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	labels, all := map[string]string{}, node.GetLabels()
	for _, entry := range node.GetManagedFields() {
		if entry.Manager != l.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // The next write replaces them.
		}
		for field := range fields.Metadata.Labels {
			key, ok := strings.CutPrefix(field, "f:")
			if value, has := all[key]; ok && has {
				labels[key] = value
			}
		}
	}
	return labels, nil
}

// Apply makes the labels the only ones of the field manager. It names the UID of the Node, since without it the API
// server would create a Node that does not exist.
func (l NodeLabels) Apply(ctx context.Context, labels map[string]string) error {
	node, err := Nodes(l.API).Get(ctx, l.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	wanted := bareNode(l.NodeName)
	wanted.SetUID(node.GetUID())
	wanted.SetLabels(labels)
	_, err = Nodes(l.API).Apply(ctx, l.NodeName, wanted, metav1.ApplyOptions{FieldManager: l.FieldManager, Force: true})
	return err
}

// stateLabel is one label with a state; without the label the state is empty.
type stateLabel struct {
	NodeLabels
	key string
}

func (l stateLabel) read(ctx context.Context) (string, bool, error) {
	labels, err := l.Read(ctx)
	return labels[l.key], true, err
}

func (l stateLabel) write(ctx context.Context, state string) error {
	labels := map[string]string{}
	if state != "" {
		labels[l.key] = state
	}
	if err := l.Apply(ctx, labels); err != nil {
		return fmt.Errorf("write label %s of Node %s: %w", l.key, l.NodeName, err)
	}
	return nil
}

// NewMIGState returns the publisher of the label key, which has the state of the wanted MIG layout. An empty state
// removes the label if the agent wrote it.
func NewMIGState(api dynamic.Interface, key string, retry Retry, report func(error), log *slog.Logger) *Publisher[string] {
	label := stateLabel{NodeLabels{api, retry.NodeName, migFieldManager}, key}
	return NewPublisher(PublisherDeps[string]{
		Read: label.read, Write: label.write, Equal: func(x, y string) bool { return x == y },
		Report: report, Retry: retry, Log: log, Interval: stateInterval,
	})
}

// RemoveMIGState removes the label of the MIG state if the agent wrote it; mig-manager's label is kept. Without a Node,
// or without an API server (api is nil), there is nothing to remove.
func RemoveMIGState(ctx context.Context, api dynamic.Interface, node string) error {
	if api == nil {
		return nil
	}
	err := NodeLabels{api, node, migFieldManager}.Apply(ctx, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
