package gpunode

import (
	"context"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Object is the GPUNode of one node in the API. A publisher reads and writes it. It is not safe for concurrent use.
type Object struct {
	api      dynamic.Interface
	nodeName string
	// owner is the UID of the Node, if known.
	owner types.UID
}

// NewObject returns the Object of the node with this name.
func NewObject(api dynamic.Interface, nodeName string) *Object {
	return &Object{api: api, nodeName: nodeName}
}

// Read returns the GPUNode that the API has; found is false when there is none, or one of another Node of that name.
func (o *Object) Read(ctx context.Context) (node *v1alpha1.GPUNode, found bool, err error) {
	owner, err := o.readOwner(ctx)
	if err != nil {
		return nil, false, err
	}
	object, err := o.api.Resource(v1alpha1.GPUNodes()).Get(ctx, o.nodeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, false, fmt.Errorf("read GPUNode %s: %w", o.nodeName, err)
	}
	o.owner = owner
	if err != nil {
		return nil, false, nil
	}
	if node, err = Decode(object); err != nil {
		return nil, false, err
	}
	return node, slices.ContainsFunc(node.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == owner }), nil
}

func (o *Object) readOwner(ctx context.Context) (types.UID, error) {
	node, err := nodeapi.Nodes(o.api).Get(ctx, o.nodeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read Node %s for the owner reference: %w", o.nodeName, err)
	}
	return node.GetUID(), nil
}

// Write applies the GPUNode, with the Node as its owner, so that it is deleted with the Node.
func (o *Object) Write(ctx context.Context, node *v1alpha1.GPUNode) error {
	if o.owner == "" {
		var err error
		if o.owner, err = o.readOwner(ctx); err != nil {
			return err
		}
	}
	object, err := encode(owned(node, o.nodeName, o.owner))
	if err != nil {
		return err
	}
	if _, err := o.api.Resource(v1alpha1.GPUNodes()).Apply(ctx, o.nodeName, object,
		metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		o.owner = "" // The Node may be another one by now.
		err = fmt.Errorf("write GPUNode %s: %w", o.nodeName, err)
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; fix: bind the agent's service account to a role with get, create, patch and update on gpunodes.berth.dev and get on nodes",
				err)
		}
		return err
	}
	return nil
}

// owned returns a copy of the object with the Node as its owner.
func owned(node *v1alpha1.GPUNode, nodeName string, uid types.UID) *v1alpha1.GPUNode {
	copied := node.DeepCopy()
	copied.Name = nodeName
	copied.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: uid}}
	return copied
}

// Equal reports whether two objects have the same content.
func Equal(x, y *v1alpha1.GPUNode) bool { return equality.Semantic.DeepEqual(x.Status, y.Status) }
