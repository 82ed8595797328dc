package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

const (
	// pageSize is how many objects of a list are decoded at the same time.
	pageSize = 500
	// shareTime is how long the callers of Get share what it returns, and how long it is kept for them.
	shareTime = time.Second
)

// List is the list of the objects of a resource, each a T with ObjectMeta.
type List[T any] struct {
	client   dynamic.Interface
	watcher  dynamic.Interface
	resource schema.GroupVersionResource
	// watching ends the watch, which outlives the request that begins it.
	watching context.Context
	keep     func(*T)
	// share is shareTime.
	share time.Duration

	mu     sync.Mutex
	store  cache.Store
	synced func() bool

	// turn is held while objects are gathered for all callers; gathered is dropped after share.
	turn     sync.Mutex
	gathered []T
	at       time.Time
}

// New returns the list of a resource in all namespaces. Nothing is read before Get, and nothing is watched after the end of ctx. client
// lists; watcher, whose requests need no limit of their time, watches. keep takes from an object what is not needed; nil takes nothing. It
// is called by one goroutine at a time.
func New[T any](ctx context.Context, client, watcher dynamic.Interface, resource schema.GroupVersionResource, keep func(*T)) *List[T] {
	var one sync.Mutex
	return &List[T]{client: client, watcher: watcher, resource: resource, watching: ctx, share: shareTime, keep: func(object *T) {
		one.Lock()
		defer one.Unlock()
		if keep != nil {
			keep(object)
		}
	}}
}

// Get returns the objects, which other callers get too and nobody may change. They can be a second old. The first call begins the watch. It
// returns the error of the API server when that refuses the list or does not respond, and what was read before is not returned then.
func (l *List[T]) Get(ctx context.Context) ([]T, error) {
	// The reflector does not tell that it has lost the API server.
	if _, err := l.client.Resource(l.resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return nil, err
	}
	store, synced := l.start()
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil, fmt.Errorf("wait for the first list: %w", context.Cause(ctx))
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	if l.gathered != nil && time.Since(l.at) < l.share {
		return l.gathered, nil
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
	l.gathered, l.at = all, time.Now()
	time.AfterFunc(l.share, func() {
		l.turn.Lock()
		defer l.turn.Unlock()
		if time.Since(l.at) >= l.share {
			l.gathered = nil
		}
	})
	return all, nil
}

func (l *List[T]) start() (store cache.Store, synced func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store == nil {
		var controller cache.Controller
		l.store, controller = cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc: l.list,
				WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
					return l.watcher.Resource(l.resource).Watch(ctx, options)
				},
			}, l.client),
			ObjectType: &unstructured.Unstructured{}, Handler: cache.ResourceEventHandlerFuncs{}, Transform: l.decode,
		})
		l.synced = controller.HasSynced
		go controller.RunWithContext(l.watching)
	}
	return l.store, l.synced
}

// list lists all objects page by page, and decodes those of a page before it reads the next: as they are sent they are many times larger.
func (l *List[T]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// The API server cuts only lists of the present state into pages.
	options.ResourceVersion, options.ResourceVersionMatch, options.Limit, options.Continue = "", "", pageSize, ""
	all := &metav1.List{}
	for {
		page, err := l.client.Resource(l.resource).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			object, err := l.decode(&page.Items[i])
			if err != nil {
				return nil, err
			}
			all.Items = append(all.Items, runtime.RawExtension{Object: object.(runtime.Object)})
			page.Items[i] = unstructured.Unstructured{}
		}
		all.ResourceVersion = page.GetResourceVersion()
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// decode returns an object as a *T.
func (l *List[T]) decode(object any) (any, error) {
	from, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil // It was decoded before.
	}
	made := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, made); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", from.GetKind(), from.GetName(), err)
	}
	l.keep(made)
	return made, nil
}
