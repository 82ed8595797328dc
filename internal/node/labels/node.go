package labels

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// fieldManager owns the labels in the managed fields of Nodes and NodeFeatures. It is no other's: a label
// that is not applied again is taken away by the API server, and nobody else's is.
const fieldManager = "berth-agent-features"

// nodeWriter writes the labels of a Node.
type nodeWriter struct {
	client dynamic.Interface
	name   string
}

func (w *nodeWriter) Place() string { return "Node " + w.name }

func (w *nodeWriter) nodes() dynamic.NamespaceableResourceInterface {
	return w.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
}

// Read is the labels that the managed fields call ours. One that somebody changed is not among them.
func (w *nodeWriter) Read(ctx context.Context) (Labels, error) {
	node, err := w.nodes().Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return nil, w.explain("read", err)
	}
	return ownLabels(node), nil
}

func ownLabels(object *unstructured.Unstructured) Labels {
	labels, have := Labels{}, object.GetLabels()
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != fieldManager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // the next write puts them right
		}
		for field := range fields.Metadata.Labels {
			key, ok := strings.CutPrefix(field, "f:")
			if value, has := have[key]; ok && has {
				labels[key] = value
			}
		}
	}
	return labels
}

func (w *nodeWriter) Write(ctx context.Context, labels Labels) error {
	return w.explain("write", w.apply(ctx, labels))
}

func (w *nodeWriter) Remove(ctx context.Context) error {
	err := w.apply(ctx, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return w.explain("remove", err)
}

// apply names the UID of the Node, since without it the API server would make a Node that is
// not there anew.
func (w *nodeWriter) apply(ctx context.Context, labels Labels) error {
	node, err := w.nodes().Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	wanted := &unstructured.Unstructured{}
	wanted.SetAPIVersion("v1")
	wanted.SetKind("Node")
	wanted.SetName(w.name)
	wanted.SetUID(node.GetUID())
	wanted.SetLabels(labels)
	_, err = w.nodes().Apply(ctx, w.name, wanted, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
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
	writer := nodeWriter{client, name}
	node, err := writer.nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read %s: %w", writer.Place(), err)
	}
	return node.GetUID(), nil
}
