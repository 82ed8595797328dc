package configwatch

import (
	"context"
	"maps"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

func nodes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// followNode follows the labels of the agent's Node.
func (w *Watcher) followNode(ctx context.Context) {
	w.follow(ctx, nodes(), "", w.base.NodeName, func(object *unstructured.Unstructured) {
		answer := answerOfNode(object)
		w.update(func(s *sources) { s.node = answer })
	})
}

// answerOfNode returns what the API says about the Node; nil is that there is none.
func answerOfNode(object *unstructured.Unstructured) nodeAnswer {
	answer := nodeAnswer{known: true}
	if object != nil {
		answer.uid = string(object.GetUID())
		answer.labels = map[string]string{}
		for _, label := range []string{LabelConfig, LabelNVIDIAConfig, LabelMIG} {
			if value := object.GetLabels()[label]; value != "" {
				answer.labels[label] = value
			}
		}
	}
	return answer
}

// answerOfMap returns what the API says about a ConfigMap; nil is that there is none.
func answerOfMap(object *unstructured.Unstructured) mapAnswer {
	answer := mapAnswer{known: true, exists: object != nil}
	if object != nil {
		answer.data, _, _ = unstructured.NestedStringMap(object.Object, "data")
	}
	return answer
}

// one returns an object, or nil if there is none of this name. It lists, with the rights that a watch needs.
func (w *Watcher) one(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	list, err := w.objects(resource, namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].GetName() == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// objects is the client of a resource, in a namespace if it is given.
func (w *Watcher) objects(resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace != "" {
		return w.api.Resource(resource).Namespace(namespace)
	}
	return w.api.Resource(resource)
}

// followMap follows one ConfigMap, NAMESPACE/NAME.
func (w *Watcher) followMap(ctx context.Context, name string) {
	namespace, short, _ := strings.Cut(name, "/")
	w.follow(ctx, configMaps(), namespace, short, func(object *unstructured.Unstructured) {
		answer := answerOfMap(object)
		w.update(func(s *sources) {
			next := maps.Clone(s.maps)
			if next == nil {
				next = map[string]mapAnswer{}
			}
			next[name] = answer
			s.maps = next
		})
	})
}

// setForbidden records that the API server denies reading an object; an empty message means that it allows it.
func (w *Watcher) setForbidden(object, message string) {
	w.mu.Lock()
	changed := w.sources.forbidden[object] != message
	if changed {
		next := maps.Clone(w.sources.forbidden)
		if next == nil {
			next = map[string]string{}
		}
		delete(next, object)
		if message != "" {
			next[object] = message
		}
		w.sources.forbidden = next
	}
	w.mu.Unlock()
	if changed {
		w.wake.Set()
	}
}

// follow calls take with the object, and with nil when it does not exist, until ctx ends. The informer retries while
// the API server is not available.
func (w *Watcher) follow(ctx context.Context, resource schema.GroupVersionResource, namespace, name string,
	take func(*unstructured.Unstructured)) {
	only := fields.OneTermEqualSelector("metadata.name", name).String()
	objects := w.objects(resource, namespace)
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return objects.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return objects.Watch(ctx, options)
		},
	}, w.api), &unstructured.Unstructured{}, 0, nil)
	what := resource.Resource + " " + strings.TrimPrefix(namespace+"/"+name, "/")
	defer w.setForbidden(what, "")
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		if apierrors.IsForbidden(err) {
			w.setForbidden(what, err.Error())
		}
	}); err != nil {
		w.deps.Log.Error("Could not watch an object of the API", "object", what, "error", err)
		return
	}
	var mu sync.Mutex
	told := false
	// report passes on that the object is missing only before any other event.
	report := func(object any, first bool) {
		found, _ := object.(*unstructured.Unstructured)
		if found != nil && found.GetName() != name {
			return
		}
		w.setForbidden(what, "")
		mu.Lock()
		defer mu.Unlock()
		if !first || !told {
			told = true
			take(found)
		}
	}
	events, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { report(object, false) },
		UpdateFunc: func(_, object any) { report(object, false) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if was, ok := object.(*unstructured.Unstructured); !ok || was.GetName() == name {
				report(nil, false)
			}
		},
	})
	if err != nil {
		w.deps.Log.Error("Could not watch an object of the API", "resource", resource.Resource, "name", name, "error", err)
		return
	}
	go func() {
		// All listed objects have been reported then; if there was none, the object does not exist.
		if cache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
			report(nil, true)
		}
	}()
	informer.Run(ctx.Done())
}
