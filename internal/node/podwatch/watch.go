package podwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// State is whether a pod can still use its devices.
type State int

// The states.
const (
	Unknown State = iota
	Living
	Ended
)

// maxEnded bounds how many ended pods are kept. A pod that was dropped is unknown, and Resolve finds that it has ended.
const maxEnded = 4096

var podsResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// Deps are the dependencies of a Watch.
type Deps struct {
	// API is nil where there is no API server: then every pod is unknown.
	API      dynamic.Interface
	NodeName string
	// Namespace is that of the agent's own pod, in which the validation pods are; empty outside a pod.
	Namespace string
	// Start is when the agent started: pods that were created before are not counted as refused, since an agent before this one has.
	Start time.Time
	Log   *slog.Logger
}

// Watch has the pods of a node. Create it with New, start it with Run. Its methods may be called concurrently.
type Watch struct {
	deps    Deps
	changed *signal.Signal
	// broadcast is signalled with changed.
	broadcast signal.Broadcast

	mu sync.Mutex
	// pods are the API server's objects, by the object's own UID.
	pods map[string]Pod
	// byUID counts the objects that describe the pod of a UID. It is more than one only where a mirror is forged.
	byUID map[string][]string
	// ended are UIDs that were seen and have ended; endedOrder has the oldest first.
	ended      map[string]bool
	endedOrder []string
	// current is true when the last call to the API server succeeded.
	current bool
	failure error
	// synced reports whether the pods that there were at the start are known; nil before the start.
	synced  func() bool
	refused map[string]uint64
}

// New returns a Watch without calling the API server.
func New(deps Deps) *Watch {
	return &Watch{
		deps: deps, changed: signal.New(),
		pods: map[string]Pod{}, byUID: map[string][]string{}, ended: map[string]bool{}, refused: map[string]uint64{},
	}
}

// Changed has a signal at first and after each change. It has one reader.
func (w *Watch) Changed() <-chan struct{} { return w.changed.C() }

// Run watches until ctx ends. Without an API server it only waits.
func (w *Watch) Run(ctx context.Context) error {
	if w.deps.API == nil {
		<-ctx.Done()
		return nil
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(
			&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}, w.deps.API),
		ObjectType: &unstructured.Unstructured{},
		Transform:  transform,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { w.put(object) },
			UpdateFunc: func(before, object any) {
				// A pod that was created again under its name while the watch was interrupted is an update here.
				if was, now := before.(*entry), object.(*entry); was.UID != now.UID {
					w.drop(before)
				}
				w.put(object)
			},
			DeleteFunc: func(object any) { w.drop(object) },
		},
	})
	w.mu.Lock()
	w.synced = controller.HasSynced
	w.mu.Unlock()
	controller.RunWithContext(ctx)
	return nil
}

// entry is the part of an object that the informer keeps.
type entry struct {
	metav1.ObjectMeta
	pod Pod
}

// GetObjectKind and DeepCopyObject implement runtime.Object for the informer; entries are never changed.
func (e *entry) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (e *entry) DeepCopyObject() runtime.Object { return e }

// transform reduces an object to an entry. An invalid object remains unknown.
func transform(object any) (any, error) {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	pod, err := parse(raw)
	if err != nil {
		pod = Pod{}
	}
	return &entry{ObjectMeta: metav1.ObjectMeta{
		Namespace: raw.GetNamespace(), Name: raw.GetName(), UID: raw.GetUID(), ResourceVersion: raw.GetResourceVersion(),
		CreationTimestamp: raw.GetCreationTimestamp(),
	}, pod: pod}, nil
}

// notify signals all receivers.
func (w *Watch) notify() {
	w.changed.Set()
	w.broadcast.Set()
}

func (w *Watch) onNode(options metav1.ListOptions) metav1.ListOptions {
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", w.deps.NodeName).String()
	return options
}

// list is consistent: with an empty resource version the API server reads from etcd, so that a pod which is not in the
// result did not exist at the time of the call.
func (w *Watch) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options = w.onNode(options)
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	found, err := w.deps.API.Resource(podsResource).List(ctx, options)
	w.noteCall(err)
	return found, err
}

func (w *Watch) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	stream, err := w.deps.API.Resource(podsResource).Watch(ctx, w.onNode(options))
	w.noteCall(err)
	return stream, err
}

func (w *Watch) noteCall(err error) {
	if request, ok := errors.AsType[*url.Error](err); ok {
		// The address has a timeout that differs in each request, which would make each failure a new problem.
		err = request.Err
	}
	if err != nil {
		err = fmt.Errorf("watch the pods of node %s: %w", w.deps.NodeName, err)
	}
	w.mu.Lock()
	changed := w.current != (err == nil)
	w.current, w.failure = err == nil, err
	w.mu.Unlock()
	if changed {
		w.notify()
	}
}

func (w *Watch) put(object any) {
	e, ok := object.(*entry)
	if !ok || e.pod.UID == "" {
		return
	}
	w.mu.Lock()
	id := string(e.UID)
	was, known := w.pods[id]
	if known {
		w.unlink(was.UID, id)
	}
	if e.pod.Refused && !was.Refused && !e.CreationTimestamp.Time.Before(w.deps.Start.Truncate(time.Second)) {
		w.countRefused(e.pod)
	}
	w.byUID[e.pod.UID] = append(w.byUID[e.pod.UID], id)
	w.pods[id] = e.pod
	w.mu.Unlock()
	w.notify()
}

func (w *Watch) drop(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	e, ok := object.(*entry)
	if !ok {
		return
	}
	w.mu.Lock()
	id := string(e.UID)
	if pod, known := w.pods[id]; known {
		delete(w.pods, id)
		w.unlink(pod.UID, id)
		if !pod.Static {
			w.end(pod.UID)
		}
	}
	w.mu.Unlock()
	w.notify()
}

func (w *Watch) unlink(uid, id string) {
	var left []string
	for _, other := range w.byUID[uid] {
		if other != id {
			left = append(left, other)
		}
	}
	if w.byUID[uid] = left; left == nil {
		delete(w.byUID, uid)
	}
}

// end records that the pod of a UID has ended. The caller has the mutex.
func (w *Watch) end(uid string) {
	if w.ended[uid] {
		return
	}
	w.ended[uid] = true
	w.endedOrder = append(w.endedOrder, uid)
	if len(w.endedOrder) > maxEnded {
		delete(w.ended, w.endedOrder[0])
		w.endedOrder = w.endedOrder[1:]
	}
}

// Pod returns the pod of a UID and its state, from memory.
func (w *Watch) Pod(uid string) (Pod, State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := w.byUID[uid]
	switch {
	case len(objects) == 0 && w.ended[uid]:
		return Pod{UID: uid}, Ended
	case len(objects) != 1:
		// A static pod without a mirror, or with an additional forged one, is still a static pod.
		return Pod{UID: uid, Static: isStaticUID(uid)}, Unknown
	}
	pod := w.pods[objects[0]]
	switch {
	case pod.Static:
		return pod, Unknown
	case pod.Finished:
		return pod, Ended
	}
	return pod, Living
}

// Current reports whether the last call to the API server succeeded. If not, the error says why; it is nil before the
// first response, and where there is no API server.
func (w *Watch) Current() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current, w.failure
}

// Resolve finds out which of the unknown pods have ended, by one consistent list. Pods whose UIDs the kubelet has, and
// that the list does not, have ended; static pods excepted.
func (w *Watch) Resolve(ctx context.Context, uids []string) error {
	var unknown []string
	for _, uid := range uids {
		if _, state := w.Pod(uid); state == Unknown && !isStaticUID(uid) {
			unknown = append(unknown, uid)
		}
	}
	if len(unknown) == 0 || w.deps.API == nil {
		return nil
	}
	found, err := w.deps.API.Resource(podsResource).List(ctx, w.onNode(metav1.ListOptions{}))
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", w.deps.NodeName, err)
	}
	present := map[string]bool{}
	for i := range found.Items {
		present[string(found.Items[i].GetUID())] = true
	}
	w.mu.Lock()
	for _, uid := range unknown {
		if !present[uid] {
			w.end(uid)
		}
	}
	w.mu.Unlock()
	w.notify()
	return nil
}
