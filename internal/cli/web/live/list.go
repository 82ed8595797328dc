package live

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// List is the list of the objects of a resource, each a T with ObjectMeta.
type List[T any] struct {
	client, watcher dynamic.Interface
	resource        schema.GroupVersionResource
	// watching ends the watch, which outlives the request that begins it.
	watching context.Context

	mu     sync.Mutex
	store  cache.Store
	synced func() bool
}

// New returns the list of a resource in all namespaces. Nothing is read before Get, and nothing is watched after the end of ctx. client
// lists; watcher, whose requests need no limit of their time, watches.
func New[T any](ctx context.Context, client, watcher dynamic.Interface, resource schema.GroupVersionResource) *List[T] {
	return &List[T]{client: client, watcher: watcher, resource: resource, watching: ctx}
}

// Get returns the objects. The first call begins the watch. It returns the error of the API server when that refuses the list or does not
// respond, and what was read before is not returned then.
func (l *List[T]) Get(ctx context.Context) ([]T, error) {
	// The reflector does not tell that it has lost the API server.
	if _, err := l.client.Resource(l.resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return nil, err
	}
	store, synced := l.start()
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil, fmt.Errorf("wait for the first list: %w", context.Cause(ctx))
	}
	keys := store.ListKeys()
	slices.Sort(keys)
	all := make([]T, 0, len(keys))
	for _, key := range keys {
		// An object may be deleted in between.
		if object, is, err := store.GetByKey(key); err == nil && is {
			all = append(all, *object.(*T))
		}
	}
	return all, nil
}

func (l *List[T]) start() (store cache.Store, synced func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store == nil {
		var controller cache.Controller
		l.store, controller = cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
					return l.client.Resource(l.resource).List(ctx, options)
				},
				WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
					return l.watcher.Resource(l.resource).Watch(ctx, options)
				},
			}, l.client),
			ObjectType: &unstructured.Unstructured{}, Handler: cache.ResourceEventHandlerFuncs{}, Transform: decode[T],
		})
		l.synced = controller.HasSynced
		go controller.RunWithContext(l.watching)
	}
	return l.store, l.synced
}

// decode returns an object as a *T.
func decode[T any](object any) (any, error) {
	from, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil // It was decoded before.
	}
	made := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, made); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", from.GetKind(), from.GetName(), err)
	}
	return made, nil
}
