package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// The labels of Berth's objects.
const (
	labelName    = "app.kubernetes.io/name"
	labelPartOf  = "app.kubernetes.io/part-of"
	labelManaged = "app.kubernetes.io/managed-by"
	ofBerth      = labelPartOf + "=berth"
	ofOperator   = labelManaged + "=berth-operator"
)

// schedulerName is the name of the scheduler's Deployment and of its Lease.
const schedulerName = "berth-scheduler"

func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

func nodes() schema.GroupVersionResource       { return resource("", "v1", "nodes") }
func pods() schema.GroupVersionResource        { return resource("", "v1", "pods") }
func namespaces() schema.GroupVersionResource  { return resource("", "v1", "namespaces") }
func daemonSets() schema.GroupVersionResource  { return resource("apps", "v1", "daemonsets") }
func deployments() schema.GroupVersionResource { return resource("apps", "v1", "deployments") }
func definitions() schema.GroupVersionResource {
	return resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

// list returns the objects of a resource that a label selector selects, in a namespace or, with "", in all. There are none of a resource
// that the API server does not serve.
func (r *remover) list(ctx context.Context, of schema.GroupVersionResource, namespace, selector string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	options := metav1.ListOptions{Limit: 500, LabelSelector: selector}
	for {
		page, err := r.Client.Resource(of).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", of.Resource, err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// listOf decodes the objects of list.
func listOf[T any](ctx context.Context, r *remover, of schema.GroupVersionResource, namespace, selector string) ([]T, error) {
	found, err := r.list(ctx, of, namespace, selector)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(found))
	for i := range found {
		if err := decode(&found[i], &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func decode(from *unstructured.Unstructured, to any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		return fmt.Errorf("decode %s %s: %w", from.GetKind(), from.GetName(), err)
	}
	return nil
}

// get returns an object, or nil when there is none.
func (r *remover) get(ctx context.Context, of schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := r.Client.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", of.Resource, name, err)
	}
	return object, nil
}

// remove deletes an object without Berth's finalizers, whose controller does not run any more. Those of others stay.
func (r *remover) remove(ctx context.Context, of schema.GroupVersionResource, object *unstructured.Unstructured) error {
	client := r.Client.Resource(of).Namespace(object.GetNamespace())
	name := object.GetName()
	others := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return strings.HasPrefix(f, v1alpha1.Group+"/") })
	if len(others) < len(object.GetFinalizers()) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": others}})
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove the finalizers of %s %s: %w", of.Resource, name, err)
		}
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if uid := object.GetUID(); uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	if err := client.Delete(ctx, name, options); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s: %w", of.Resource, name, err)
	}
	r.print("deleted %s %s", object.GetKind(), strings.TrimPrefix(object.GetNamespace()+"/"+name, "/"))
	return nil
}

// removeAll deletes the objects that a selector and a function select; keep may be nil.
func (r *remover) removeAll(ctx context.Context, of schema.GroupVersionResource, namespace, selector string, ours func(*unstructured.Unstructured) bool) error {
	found, err := r.list(ctx, of, namespace, selector)
	if err != nil {
		return err
	}
	for i := range found {
		if ours != nil && !ours(&found[i]) {
			continue
		}
		if err := r.remove(ctx, of, &found[i]); err != nil {
			return err
		}
	}
	return nil
}
