package operator

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server for what the operator asks for. Server-side apply only merges fields.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server

	mu      sync.Mutex
	changed *sync.Cond
	version int
	objects map[string]*unstructured.Unstructured // by path
	watches map[chan watch.Event]string           // to the path of the collection
	// calls are the requests by verb, resource and name, as RBAC sees them.
	calls map[string]int
	// admit changes or refuses what is written, and written acts after a write; the mutex is held.
	admit   func(path string, object *unstructured.Unstructured) *apierrors.StatusError
	written func(path string)
}

// servedBy are the groups and versions with their resources.
var servedBy = map[string]map[string]string{
	"v1":                      {"namespaces": "Namespace", "resourcequotas": "ResourceQuota", "configmaps": "ConfigMap", "pods": "Pod"},
	"berth.dev/v1alpha1":      {"gpunodes": "GPUNode", "gpuquotas": "GPUQuota", "gpustacks": "GPUStack", "nodeoperations": "NodeOperation"},
	"apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
	"resource.k8s.io/v1":      {"deviceclasses": "DeviceClass", "resourceclaims": "ResourceClaim"},
	"coordination.k8s.io/v1":  {"leases": "Lease"},
	"events.k8s.io/v1":        {"events": "Event"},
}

var namespaced = []string{"leases", "events", "resourcequotas", "configmaps", "pods", "resourceclaims"}

func newFakeAPI(t *testing.T) *fakeAPI {
	a := &fakeAPI{t: t, objects: map[string]*unstructured.Unstructured{}, watches: map[chan watch.Event]string{}, calls: map[string]int{}}
	a.changed = sync.NewCond(&a.mu)
	a.server = httptest.NewServer(a)
	t.Cleanup(a.server.Close)
	return a
}

func (a *fakeAPI) config() *rest.Config {
	return &rest.Config{Host: a.server.URL, QPS: 1000, Burst: 1000}
}

// ServeHTTP answers discovery, and requests for objects.
func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	at := 3
	if parts[0] == "api" {
		at = 2
	}
	switch {
	case r.URL.Path == "/api":
		answer(w, 200, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case r.URL.Path == "/apis":
		answer(w, 200, groups())
		return
	case parts[0] == "api" && slices.Contains(parts, "events"): // the Events of the leader election
		a.count("create", "core events", "")
		answer(w, 201, map[string]any{"kind": "Event", "apiVersion": "v1", "metadata": map[string]any{}})
		return
	case len(parts) < at || servedBy[strings.Join(parts[1:at], "/")] == nil:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	version := strings.Join(parts[1:at], "/")
	if len(parts) == at {
		answer(w, 200, resources(version))
		return
	}
	rest := parts[at:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		rest = rest[2:]
	}
	kind, ok := servedBy[version][rest[0]]
	counted := rest[0]
	if len(rest) == 3 {
		counted += "/" + rest[2]
		r.URL.Path = strings.TrimSuffix(r.URL.Path, "/"+rest[2])
	}
	if parts[0] == "api" {
		counted = "core " + counted
	}
	switch {
	case !ok:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
	case len(rest) == 1 && r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		a.count("watch", counted, "")
		a.watch(w, r)
	case len(rest) == 1 && r.Method == http.MethodGet:
		a.count("list", counted, "")
		a.list(w, r, version, kind)
	case len(rest) == 1:
		a.count("create", counted, "")
		a.write(w, r, "")
	case r.Method == http.MethodGet:
		a.count("get", counted, rest[1])
		a.get(w, r)
	case r.Method == http.MethodDelete:
		a.count("delete", counted, rest[1])
		a.delete(w, r)
	default:
		a.count(map[string]string{"PATCH": "patch", "PUT": "update"}[r.Method], counted, rest[1])
		a.write(w, r, rest[1])
	}
}

func groups() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, version := range slices.Sorted(maps.Keys(servedBy)) {
		group, v, named := strings.Cut(version, "/")
		if !named {
			continue // the core group
		}
		one := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: v}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{one}, PreferredVersion: one})
	}
	return list
}

func resources(version string) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
	for name, kind := range servedBy[version] {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: kind, Namespaced: slices.Contains(namespaced, name)})
	}
	return list
}

func (a *fakeAPI) count(verb, resource, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[strings.TrimSpace(verb+" "+resource+" "+name)]++
	a.changed.Broadcast()
}

func (a *fakeAPI) get(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	object := a.objects[r.URL.Path]
	a.mu.Unlock()
	if object == nil {
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	answer(w, 200, asked(r, object))
}

// asked returns what a request asks for: the object, or its metadata.
func asked(r *http.Request, object *unstructured.Unstructured) *unstructured.Unstructured {
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return metadataOf(object)
	}
	return object
}

func metadataOf(object *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object.Object["metadata"]}}
}

func (a *fakeAPI) list(w http.ResponseWriter, r *http.Request, version, kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	items := []any{}
	for _, object := range a.selected(r) {
		items = append(items, asked(r, object).Object)
	}
	answer(w, 200, map[string]any{"apiVersion": version, "kind": kind + "List", "items": items, "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}})
}

// selected returns the objects of a collection that a request selects, sorted.
func (a *fakeAPI) selected(r *http.Request) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for _, path := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(path, r.URL.Path+"/") && selects(r, a.objects[path]) {
			all = append(all, a.objects[path])
		}
	}
	return all
}

func selects(r *http.Request, object *unstructured.Unstructured) bool {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	return err == nil && object != nil && selector.Matches(labels.Set(object.GetLabels()))
}

// watch streams the selected objects, or their metadata; one that is no longer selected is reported as deleted, as by a real API server.
func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan watch.Event, 1000)
	known := map[string]bool{}
	a.mu.Lock()
	initial := a.selected(r)
	version := a.version
	a.watches[events] = r.URL.Path
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, events)
		a.mu.Unlock()
	}()
	send := func(kind watch.EventType, object *unstructured.Unstructured) {
		if err := json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object.Object}); err == nil {
			w.(http.Flusher).Flush()
		}
	}
	w.Header().Set("Content-Type", "application/json")
	for _, object := range initial {
		known[object.GetName()] = true
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			send(watch.Added, asked(r, object))
		}
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		end := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(version),
			"annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}}
		end.SetGroupVersionKind(kindAt(r.URL.Path))
		send(watch.Bookmark, asked(r, end))
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			object := e.Object.(*unstructured.Unstructured)
			here, before := e.Type != watch.Deleted && selects(r, object), known[object.GetName()]
			known[object.GetName()] = here
			switch {
			case here && !before:
				send(watch.Added, asked(r, object))
			case here:
				send(watch.Modified, asked(r, object))
			case before:
				send(watch.Deleted, asked(r, object))
			}
		}
	}
}

// kindAt returns the kind of the objects of a collection.
func kindAt(path string) schema.GroupVersionKind {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	version := parts[1]
	if parts[0] == "apis" {
		version += "/" + parts[2]
	}
	return schema.FromAPIVersionAndKind(version, servedBy[version][parts[len(parts)-1]])
}

// delete deletes an object, or marks one that has finalizers.
func (a *fakeAPI) delete(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	live := a.objects[r.URL.Path]
	if live == nil {
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	object := live.DeepCopy()
	if now := metav1.Now(); len(object.GetFinalizers()) > 0 {
		object.SetDeletionTimestamp(&now)
		a.put(r.URL.Path, object)
	} else {
		a.put(r.URL.Path, nil)
	}
	answer(w, 200, object)
}

// write creates, replaces or merges an object; name is "" for a create.
func (a *fakeAPI) write(w http.ResponseWriter, r *http.Request, name string) {
	object, err := body(r)
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	path := r.URL.Path
	if name == "" {
		path += "/" + object.GetName()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	live := a.objects[path]
	if want := object.GetResourceVersion(); want != "" && (live == nil || live.GetResourceVersion() != want) {
		refuse(w, apierrors.NewConflict(schema.GroupResource{}, path, fmt.Errorf("want version %s", want)))
		return
	}
	if live != nil && r.Method == http.MethodPatch {
		object = &unstructured.Unstructured{Object: mergedObjects(live.DeepCopy().Object, object.Object)}
	}
	if a.admit != nil {
		if err := a.admit(path, object); err != nil {
			refuse(w, err)
			return
		}
	}
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		a.put(path, nil)
	} else {
		a.put(path, object)
	}
	answer(w, 200, object)
	if a.written != nil {
		a.written(path)
	}
}

// body reads an object in JSON, or in protobuf, in which clients of Kubernetes' own types write.
func body(r *http.Request) (*unstructured.Unstructured, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			return nil, err
		}
		if text, err = json.Marshal(typed); err != nil {
			return nil, err
		}
	}
	object := &unstructured.Unstructured{}
	return object, json.Unmarshal(text, &object.Object)
}

func mergedObjects(under, over map[string]any) map[string]any {
	for key, value := range over {
		inner, ok := under[key].(map[string]any)
		if outer, isMap := value.(map[string]any); ok && isMap {
			value = mergedObjects(inner, outer)
		}
		under[key] = value
	}
	return under
}

// put stores an object, or deletes it for nil; the mutex is held.
func (a *fakeAPI) put(path string, object *unstructured.Unstructured) {
	a.version++
	event := watch.Event{Type: watch.Modified, Object: object}
	if object == nil {
		event = watch.Event{Type: watch.Deleted, Object: a.objects[path]}
		delete(a.objects, path)
	} else {
		object.SetResourceVersion(strconv.Itoa(a.version))
		if object.GetUID() == "" {
			object.SetUID(types.UID("uid-" + strconv.Itoa(a.version)))
			object.SetCreationTimestamp(metav1.Now())
		}
		a.objects[path] = object
	}
	for events, collection := range a.watches {
		if strings.HasPrefix(path, collection+"/") {
			events <- event
		}
	}
	a.changed.Broadcast()
}

// edit changes an object as somebody else; a change that returns nil deletes it.
func (a *fakeAPI) edit(path string, change func(*unstructured.Unstructured) *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(path, change(a.objects[path].DeepCopy()))
}

// number counts the objects below a path; the mutex is held.
func (a *fakeAPI) number(prefix string) int {
	n := 0
	for path := range a.objects {
		if strings.HasPrefix(path, prefix) {
			n++
		}
	}
	return n
}

// object returns an object as it is now.
func (a *fakeAPI) object(path string) *unstructured.Unstructured {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[path].DeepCopy()
}

// requested returns the requests until now.
func (a *fakeAPI) requested() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.calls)
}

// wait waits until the condition holds, which is evaluated after each request and change.
func (a *fakeAPI) wait(what string, condition func() bool) {
	a.t.Helper()
	late := false
	timer := time.AfterFunc(2*time.Minute, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		late = true
		a.changed.Broadcast()
	})
	defer timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for !condition() {
		if late {
			a.t.Fatalf("not within 2 minutes: %s; calls %v", what, a.calls)
		}
		a.changed.Wait()
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // The client may be gone.
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	answer(w, int(err.ErrStatus.Code), err.ErrStatus)
}
