package labels

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// fieldManager owns the labels in the managed fields of Nodes and NodeFeatures. No other program uses its name: the API server
// removes a label of this manager that is not applied again, and none of others.
const fieldManager = "berth-agent-features"

// nodeWriter writes the labels of a Node.
type nodeWriter struct{ labels nodeapi.NodeLabels }

func newNodeWriter(client dynamic.Interface, name string) *nodeWriter {
	return &nodeWriter{nodeapi.NodeLabels{API: client, NodeName: name, FieldManager: fieldManager}}
}

func (w *nodeWriter) Place() string { return "Node " + w.labels.NodeName }

// Read returns the labels that the managed fields attribute to the agent. A label that another program changed is not among them.
func (w *nodeWriter) Read(ctx context.Context) (Labels, error) {
	labels, err := w.labels.Read(ctx)
	if err != nil {
		return nil, w.explain("read", err)
	}
	return labels, nil
}

func (w *nodeWriter) Write(ctx context.Context, labels Labels) error {
	return w.explain("write", w.labels.Apply(ctx, labels))
}

func (w *nodeWriter) Remove(ctx context.Context) error {
	err := w.labels.Apply(ctx, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return w.explain("remove", err)
}

func (w *nodeWriter) explain(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s the labels of %s: %w; fix: bind the agent's service account to a role with get and patch on nodes, or choose another output", verb, w.Place(), err)
	}
	return fmt.Errorf("%s the labels of %s: %w", verb, w.Place(), err)
}

// uidOf reads the UID of a Node.
func uidOf(ctx context.Context, client dynamic.Interface, name string) (types.UID, error) {
	node, err := nodeapi.Nodes(client).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read Node %s: %w", name, err)
	}
	return node.GetUID(), nil
}
