package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/cli/fit"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// fitObjects are the objects that berth fit reads.
type fitObjects struct {
	fit.Cluster
	templates []resourceapi.ResourceClaimTemplate
}

// readFit reads what the scheduler reads. Pods are read only where they can matter.
func readFit(ctx context.Context, client dynamic.Interface, file *fit.File) (objects fitObjects, err error) {
	core := func(name string) schema.GroupVersionResource { return corev1.SchemeGroupVersion.WithResource(name) }
	dra := func(name string) schema.GroupVersionResource {
		return resourceapi.SchemeGroupVersion.WithResource(name)
	}
	if objects.Nodes, err = listOf[corev1.Node](ctx, client, core("nodes")); err != nil {
		return objects, err
	}
	needed := file.UsesClaims()
	if objects.Slices, err = listServed[resourceapi.ResourceSlice](ctx, client, dra("resourceslices"), needed); err != nil {
		return objects, err
	}
	if objects.Classes, err = listServed[resourceapi.DeviceClass](ctx, client, dra("deviceclasses"), needed); err != nil {
		return objects, err
	}
	if objects.Claims, err = listServed[resourceapi.ResourceClaim](ctx, client, dra("resourceclaims"), needed); err != nil {
		return objects, err
	}
	// Kubernetes before 1.37 does not serve this version.
	if objects.TaintRules, err = listOf[resourceapi.DeviceTaintRule](ctx, client, dra("devicetaintrules")); err != nil && !apierrors.IsNotFound(err) {
		return objects, err
	}
	if file.UsesPlugins(objects.Nodes) {
		if objects.Pods, err = listOf[corev1.Pod](ctx, client, core("pods")); err != nil {
			return objects, err
		}
	}
	for _, name := range file.Unresolved() {
		namespace, name, _ := strings.Cut(name, "/")
		found, err := client.Resource(dra("resourceclaimtemplates")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue // Resolving the pod's entries names it.
		}
		if err != nil {
			return objects, fmt.Errorf("read ResourceClaimTemplate %s/%s: %w", namespace, name, err)
		}
		var template resourceapi.ResourceClaimTemplate
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &template); err != nil {
			return objects, fmt.Errorf("decode ResourceClaimTemplate %s/%s: %w", namespace, name, err)
		}
		objects.templates = append(objects.templates, template)
	}
	return objects, nil
}

// listServed returns all objects of a resource of resource.k8s.io/v1. An API server that does not know the version answers 404: it has
// none, which is an error only where they are needed.
func listServed[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, needed bool) ([]T, error) {
	found, err := listOf[T](ctx, client, resource)
	switch {
	case !apierrors.IsNotFound(err):
		return found, err
	case !needed:
		return nil, nil
	}
	return nil, &hintError{
		fmt.Errorf("the API server does not serve %s, which Kubernetes 1.34 and later have by default", resource.GroupVersion()),
		"fix: use a cluster with that API; without it there is an answer only for pods without ResourceClaims",
	}
}

// listOf returns all objects of a resource, in all namespaces.
func listOf[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) ([]T, error) {
	return listIn[T](ctx, client, resource, metav1.NamespaceAll)
}

// listIn returns all objects of a resource in a namespace; "" means all.
func listIn[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, namespace string) ([]T, error) {
	return listPages[T](ctx, client.Resource(resource).Namespace(namespace), resource.Resource, metav1.ListOptions{})
}

// listSelected returns the objects of a resource in all namespaces that a label selector selects.
func listSelected[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, selector string) ([]T, error) {
	return listPages[T](ctx, client.Resource(resource), resource.Resource, metav1.ListOptions{LabelSelector: selector})
}

// listPages returns all objects that the options select, in pages.
func listPages[T any](ctx context.Context, client dynamic.ResourceInterface, name string, options metav1.ListOptions) ([]T, error) {
	var all []T
	options.Limit = 500
	for {
		page, err := client.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", name, err)
		}
		for i := range page.Items {
			var one T
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, &one); err != nil {
				return nil, fmt.Errorf("decode %s %s: %w", page.Items[i].GetKind(), page.Items[i].GetName(), err)
			}
			all = append(all, one)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
