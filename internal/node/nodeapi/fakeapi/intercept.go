package fakeapi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Request is a request to the server, as Intercept sees it.
type Request struct {
	Verb         string
	Resource     string
	Subresource  string
	FieldManager string
}

// Resource implements dynamic.Interface. The requests are intercepted before the fake of client-go gets them, which
// holds a lock while it responds: there, one request that hangs would block all others.
func (s *Server) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	all := s.FakeDynamicClient.Resource(resource)
	return intercepted{requests{all, s, resource.Resource}, all}
}

type intercepted struct {
	requests
	all dynamic.NamespaceableResourceInterface
}

// Namespace implements dynamic.NamespaceableResourceInterface.
func (i intercepted) Namespace(name string) dynamic.ResourceInterface {
	return requests{i.all.Namespace(name), i.server, i.name}
}

// requests intercepts the requests to one resource.
type requests struct {
	dynamic.ResourceInterface
	server *Server
	name   string
}

func (r requests) see(verb, manager string, subresources []string) error {
	r.server.mu.Lock()
	intercept := r.server.intercept
	r.server.mu.Unlock()
	if intercept == nil {
		return nil
	}
	request := Request{Verb: verb, Resource: r.name, FieldManager: manager}
	if len(subresources) > 0 {
		request.Subresource = subresources[0]
	}
	return intercept(request)
}

func (r requests) Get(ctx context.Context, name string, options metav1.GetOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if err := r.see("get", "", subresources); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Get(ctx, name, options, subresources...)
}

func (r requests) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := r.see("watch", "", nil); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Watch(ctx, options)
}

func (r requests) Create(ctx context.Context, object *unstructured.Unstructured, options metav1.CreateOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if err := r.see("create", options.FieldManager, subresources); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Create(ctx, object, options, subresources...)
}

func (r requests) Update(ctx context.Context, object *unstructured.Unstructured, options metav1.UpdateOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if err := r.see("update", options.FieldManager, subresources); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Update(ctx, object, options, subresources...)
}

func (r requests) Delete(ctx context.Context, name string, options metav1.DeleteOptions, subresources ...string) error {
	if err := r.see("delete", "", subresources); err != nil {
		return err
	}
	return r.ResourceInterface.Delete(ctx, name, options, subresources...)
}

func (r requests) Patch(ctx context.Context, name string, kind types.PatchType, body []byte, options metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if err := r.see("patch", options.FieldManager, subresources); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Patch(ctx, name, kind, body, options, subresources...)
}

func (r requests) Apply(ctx context.Context, name string, object *unstructured.Unstructured, options metav1.ApplyOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if err := r.see("apply", options.FieldManager, subresources); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Apply(ctx, name, object, options, subresources...)
}
