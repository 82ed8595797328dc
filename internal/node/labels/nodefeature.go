package labels

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	nodeFeatureGroup = "nfd.k8s-sigs.io"
	// nodeFeaturePrefix precedes the node in the object's name. It is that of GPU feature discovery, so that its object is
	// replaced and does not contradict the agent's.
	nodeFeaturePrefix = "nvidia-features-for-"
	nodeNameLabel     = "nfd.node.kubernetes.io/node-name"
)

// nodeFeatureWriter writes a NodeFeature, which is deleted with its Node.
type nodeFeatureWriter struct {
	client    dynamic.Interface
	nodeName  string
	namespace string
}

func (w *nodeFeatureWriter) name() string { return nodeFeaturePrefix + w.nodeName }

func (w *nodeFeatureWriter) Place() string { return "NodeFeature " + w.namespace + "/" + w.name() }

func (w *nodeFeatureWriter) objects() dynamic.ResourceInterface {
	return w.client.Resource(schema.GroupVersionResource{Group: nodeFeatureGroup, Version: "v1alpha1", Resource: "nodefeatures"}).Namespace(w.namespace)
}

// Read returns no labels of an object that belongs to another Node, or is not as Write makes it.
func (w *nodeFeatureWriter) Read(ctx context.Context) (Labels, error) {
	object, err := w.objects().Get(ctx, w.name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, w.explain("read", err)
	}
	uid, err := uidOf(ctx, w.client, w.nodeName)
	if err != nil {
		return nil, w.explain("read", err)
	}
	labels, ok, err := unstructured.NestedStringMap(object.Object, "spec", "labels")
	if err != nil || !ok || object.GetLabels()[nodeNameLabel] != w.nodeName || !slices.Equal(object.GetOwnerReferences(), w.owners(uid)) {
		return nil, nil
	}
	return labels, nil
}

func (w *nodeFeatureWriter) owners(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.nodeName, UID: uid}}
}

// Write replaces the whole object, with labels and owners that GPU feature discovery left in it.
func (w *nodeFeatureWriter) Write(ctx context.Context, labels Labels) error {
	uid, err := uidOf(ctx, w.client, w.nodeName)
	if err != nil {
		return w.explain("write", err)
	}
	current, err := w.objects().Get(ctx, w.name(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = w.objects().Create(ctx, w.object(uid, labels), metav1.CreateOptions{FieldManager: fieldManager})
	case err == nil:
		wanted := w.object(uid, labels)
		wanted.SetResourceVersion(current.GetResourceVersion())
		_, err = w.objects().Update(ctx, wanted, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	return w.explain("write", err)
}

func (w *nodeFeatureWriter) object(uid types.UID, labels Labels) *unstructured.Unstructured {
	values := map[string]any{}
	for key, value := range labels {
		values[key] = value
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"features": map[string]any{"attributes": map[string]any{}, "flags": map[string]any{}, "instances": map[string]any{}},
		"labels":   values,
	}}}
	object.SetAPIVersion(nodeFeatureGroup + "/v1alpha1")
	object.SetKind("NodeFeature")
	object.SetName(w.name())
	object.SetNamespace(w.namespace)
	object.SetLabels(map[string]string{nodeNameLabel: w.nodeName})
	object.SetOwnerReferences(w.owners(uid))
	return object
}

func (w *nodeFeatureWriter) Remove(ctx context.Context) error {
	err := w.objects().Delete(ctx, w.name(), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return w.explain("remove", err)
}

func (w *nodeFeatureWriter) explain(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s %s: %w; fix: bind the agent's service account to roles with get, create, update and delete on nodefeatures.%s and get on nodes", verb, w.Place(), err, nodeFeatureGroup)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %s: %w; fix: install Node Feature Discovery, or choose the output %s, which does without it", verb, w.Place(), err, OutputNode)
	}
	return fmt.Errorf("%s %s: %w", verb, w.Place(), err)
}
