package gpunode

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/api/crds"
	"github.com/berth-gpu/berth/api/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// FieldManager is the agent's name in the objects' managed fields.
const FieldManager = "berth-agent"

// Decode reads a GPUNode from the dynamic client's form.
func Decode(object *unstructured.Unstructured) (*v1alpha1.GPUNode, error) {
	blob, err := object.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("read GPUNode %s: %w", object.GetName(), err)
	}
	node := &v1alpha1.GPUNode{}
	if err := json.Unmarshal(blob, node); err != nil {
		return nil, fmt.Errorf("read GPUNode %s: %w", object.GetName(), err)
	}
	return node, nil
}

// HadGPU reports whether the GPUNode that the API has of a node names a GPU. Without the permission to read it the answer is true.
func HadGPU(ctx context.Context, client dynamic.Interface, node string) (bool, error) {
	object, err := client.Resource(v1alpha1.GPUNodes()).Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read GPUNode %s: %w", node, err)
	}
	before, err := Decode(object)
	if err != nil {
		return true, nil // One that this version cannot read is not that of a node without GPUs.
	}
	return len(before.Status.Devices) > 0, nil
}

func encode(node *v1alpha1.GPUNode) (*unstructured.Unstructured, error) {
	blob, err := json.Marshal(node)
	if err != nil {
		return nil, fmt.Errorf("write GPUNode %s: %w", node.Name, err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(blob, &object.Object); err != nil {
		return nil, fmt.Errorf("write GPUNode %s: %w", node.Name, err)
	}
	return object, nil
}

// CheckDefinition returns an error while the API server has no definition of gpunodes.berth.dev, or an earlier version of it, which drops
// fields that this agent writes. The operator applies the definition. Without the permission to read it, it returns [ErrNotPermitted].
func CheckDefinition(ctx context.Context, client dynamic.Interface) error {
	wanted := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.GPUNodes(), &wanted.Object); err != nil {
		return fmt.Errorf("read the embedded definition: %w", err)
	}
	const name = "gpunodes.berth.dev"
	current, err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no definition of %s: the operator applies it (kubectl logs deployment/berth-operator); "+
			"without the operator: kubectl apply --server-side -f api/crds", name)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("read definition of %s: %w: %w; fix: allow get on customresourcedefinitions, as the chart does", name, ErrNotPermitted, err)
	case err != nil:
		return fmt.Errorf("read definition of %s: %w", name, err)
	case version(current) < version(wanted):
		return fmt.Errorf("the definition of %s has schema version %d, and this agent writes version %d: the API server drops what is new; "+
			"upgrade the operator, which applies the definition", name, version(current), version(wanted))
	}
	return nil
}

// version is the schema version of a definition; 0 for one that carries none.
func version(object *unstructured.Unstructured) int { return crds.Version(object.GetAnnotations()) }

// ErrNotPermitted marks errors that an administrator has to fix.
var ErrNotPermitted = errors.New("the service account may not do this")
