package gpunode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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

// List reads all GPUNodes, in the order of their names.
func List(ctx context.Context, client dynamic.Interface) ([]v1alpha1.GPUNode, error) {
	list, err := client.Resource(v1alpha1.GPUNodes()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes := make([]v1alpha1.GPUNode, 0, len(list.Items))
	for i := range list.Items {
		node, err := Decode(&list.Items[i])
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, *node)
	}
	return nodes, nil
}

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

// EnsureDefinition creates the definition of gpunodes.berth.dev, or updates one of an earlier version. It keeps a newer
// one. Without the permission it returns an error; the agent continues, but publishes no GPUNode until the file
// api/crds/berth.dev_gpunodes.yaml is applied.
func EnsureDefinition(ctx context.Context, client dynamic.Interface, log *slog.Logger) error {
	wanted := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.GPUNodes(), &wanted.Object); err != nil {
		return fmt.Errorf("read the embedded definition: %w", err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	current, err := definitions.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = definitions.Create(ctx, wanted, metav1.CreateOptions{FieldManager: FieldManager})
		if err == nil || apierrors.IsAlreadyExists(err) {
			log.Info("Created definition of gpunodes.berth.dev")
			return nil
		}
		return definitionError("create", err)
	case err != nil:
		return definitionError("read", err)
	case version(current) >= version(wanted):
		return nil
	}
	wanted.SetResourceVersion(current.GetResourceVersion())
	_, err = definitions.Update(ctx, wanted, metav1.UpdateOptions{FieldManager: FieldManager})
	if err == nil || apierrors.IsConflict(err) { // another agent was faster
		log.Info("Updated definition of gpunodes.berth.dev", "from", version(current), "to", version(wanted))
		return nil
	}
	return definitionError("update", err)
}

// version is the schema version of a definition; 0 for one that carries none.
func version(object *unstructured.Unstructured) int { return crds.Version(object.GetAnnotations()) }

// ErrNotPermitted marks errors that an administrator has to fix.
var ErrNotPermitted = errors.New("the service account may not do this")

func definitionError(verb string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s definition of gpunodes.berth.dev: %w: %w; fix: kubectl apply -f api/crds/berth.dev_gpunodes.yaml, or allow it on customresourcedefinitions",
			verb, ErrNotPermitted, err)
	}
	return fmt.Errorf("%s definition of gpunodes.berth.dev: %w", verb, err)
}
