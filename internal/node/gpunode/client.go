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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
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

// definitions is the resource of the definitions, and definition the name of that of GPUNode.
func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

const definition = "gpunodes.berth.dev"

// CheckDefinition returns an error while the API server has no definition of gpunodes.berth.dev, or an earlier version of it, which drops
// fields that this agent writes. The operator applies the definition. Without the permission to read it, it returns [ErrNotPermitted], and
// [ErrUnread] when the API server does not answer.
// The UID is that of the definition, whatever its version, and empty while the API server does not serve its objects yet.
func CheckDefinition(ctx context.Context, client dynamic.Interface) (types.UID, error) {
	wanted := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.GPUNodes(), &wanted.Object); err != nil {
		return "", fmt.Errorf("read the embedded definition: %w", err)
	}
	current, err := client.Resource(definitions()).Get(ctx, definition, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("there is no definition of %s: the operator applies it (kubectl logs deployment/berth-operator); "+
			"without the operator: kubectl apply --server-side -f api/crds", definition)
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("read definition of %s: %w: %w; fix: allow get on customresourcedefinitions, as the chart does", definition, ErrNotPermitted, err)
	case err != nil:
		return "", fmt.Errorf("read definition of %s: %w: %w", definition, ErrUnread, err)
	case version(current) < version(wanted):
		return served(current), fmt.Errorf("the definition of %s has schema version %d, and this agent writes version %d: the API server drops what is new; "+
			"upgrade the operator, which applies the definition", definition, version(current), version(wanted))
	}
	return served(current), nil
}

// served returns the UID of a definition whose objects the API server serves, and "" of another.
func served(object *unstructured.Unstructured) types.UID {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions") // Another form is none.
	for _, c := range conditions {
		if c, _ := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" && object.GetDeletionTimestamp() == nil {
			return object.GetUID()
		}
	}
	return ""
}

// FollowDefinition calls changed at first, and when the definition has changed, until it returns an error, the API server ends the watch,
// which is no error, or ctx ends. Without the permission to watch it returns [ErrNotPermitted].
func FollowDefinition(ctx context.Context, client dynamic.Interface, changed func(context.Context) error) error {
	stream, err := client.Resource(definitions()).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", definition).String()})
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("watch the definition of %s: %w: %w", definition, ErrNotPermitted, err)
	case err != nil:
		return fmt.Errorf("watch the definition of %s: %w", definition, err)
	}
	defer stream.Stop()
	for {
		if err := changed(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-stream.ResultChan():
			if !open || event.Type == watch.Error {
				return nil
			}
		}
	}
}

// version is the schema version of a definition; 0 for one that carries none.
func version(object *unstructured.Unstructured) int { return crds.Version(object.GetAnnotations()) }

var (
	// ErrNotPermitted marks errors that an administrator has to fix.
	ErrNotPermitted = errors.New("the service account may not do this")
	// ErrUnread marks errors after which nothing is known of the definition.
	ErrUnread = errors.New("the API server gave no answer")
)
