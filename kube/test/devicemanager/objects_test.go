package devicemanager

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// objects serves the objects of the group resource.k8s.io/v1, and the Node, as an API server does: list, watch with initial events, get,
// create, update with a check of the version, delete, and delete of a collection. Field selectors select everything, because there is
// one node and one driver.
type objects struct {
	mu      sync.Mutex
	changed *sync.Cond
	version int
	stored  map[string]map[string]*unstructured.Unstructured // by resource and path
	log     []objectChange
	closed  bool
}

// objectChange is one event of a watch.
type objectChange struct {
	version  int
	resource string
	kind     string
	object   *unstructured.Unstructured
}

// kinds are the kinds that objects serves, by the plural name.
var kinds = map[string]string{"resourceslices": "ResourceSlice", "resourceclaims": "ResourceClaim", "nodes": "Node"}

func newObjects() *objects {
	o := &objects{stored: map[string]map[string]*unstructured.Unstructured{}}
	for resource := range kinds {
		o.stored[resource] = map[string]*unstructured.Unstructured{}
	}
	o.changed = sync.NewCond(&o.mu)
	node := &unstructured.Unstructured{}
	node.SetAPIVersion("v1")
	node.SetKind("Node")
	node.SetName(nodeName)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.store("ADDED", "nodes", nodeName, node)
	return o
}

// close ends all watches.
func (o *objects) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Broadcast()
}

// store makes a change visible. The caller holds mu, and does not change the object any more.
func (o *objects) store(kind, resource, path string, object *unstructured.Unstructured) {
	o.version++
	object.SetResourceVersion(strconv.Itoa(o.version))
	if object.GetUID() == "" {
		object.SetUID(uuid.NewUUID())
	}
	if kind == "DELETED" {
		delete(o.stored[resource], path)
	} else {
		o.stored[resource][path] = object
	}
	o.log = append(o.log, objectChange{o.version, resource, kind, object})
	o.changed.Broadcast()
}

// ServeHTTP serves the paths that split knows.
func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource, path, ok := split(r.URL.Path)
	if !ok {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "there is no "+r.URL.Path)
		return
	}
	whole := path == "" || strings.HasSuffix(path, "/") // without the name of an object
	switch {
	case r.Method == http.MethodGet && whole && r.URL.Query().Get("watch") != "":
		o.watch(w, r, resource)
	case r.Method == http.MethodGet && whole:
		o.list(w, resource)
	case r.Method == http.MethodDelete && whole:
		o.deleteAll(w, resource)
	case r.Method == http.MethodGet:
		o.get(w, resource, path)
	case r.Method == http.MethodPost:
		o.create(w, r, resource, path)
	case r.Method == http.MethodPut:
		o.update(w, r, resource, path)
	case r.Method == http.MethodDelete:
		o.delete(w, resource, path)
	default:
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method+" "+r.URL.Path)
	}
}

// split returns the resource of a path, and the path below it: the name, or NAMESPACE/ or NAMESPACE/NAME.
func split(path string) (resource, below string, ok bool) {
	rest, found := strings.CutPrefix(path, "/apis/resource.k8s.io/v1/")
	if !found {
		if rest, found = strings.CutPrefix(path, "/api/v1/nodes"); !found {
			return "", "", false
		}
		rest = "nodes" + rest
	}
	parts := strings.Split(strings.TrimSuffix(rest, "/status"), "/")
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1]+"/", parts[2:]
	}
	_, ok = kinds[parts[0]]
	return parts[0], namespace + strings.Join(parts[1:], "/"), ok && len(parts) <= 2
}

func missing(w http.ResponseWriter, resource, path string) {
	fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resource, path))
}

func (o *objects) get(w http.ResponseWriter, resource, path string) {
	o.mu.Lock()
	object := o.stored[resource][path]
	o.mu.Unlock()
	if object == nil {
		missing(w, resource, path)
		return
	}
	answer(w, http.StatusOK, object)
}

func (o *objects) list(w http.ResponseWriter, resource string) {
	o.mu.Lock()
	items := []any{}
	for _, path := range o.paths(resource) {
		items = append(items, o.stored[resource][path].Object)
	}
	version := strconv.Itoa(o.version)
	o.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": kinds[resource] + "List",
		"metadata": map[string]any{"resourceVersion": version}, "items": items})
}

// paths returns the paths of the objects of a resource, sorted. The caller holds mu.
func (o *objects) paths(resource string) []string {
	var paths []string
	for path := range o.stored[resource] {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// read decodes the object of a request.
func read(w http.ResponseWriter, r *http.Request) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	if err := json.NewDecoder(r.Body).Decode(&object.Object); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return nil
	}
	return object
}

func (o *objects) create(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	object := read(w, r)
	if object == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("%s%05x", object.GetGenerateName(), 0xfffff-o.version)) // no order by creation
	}
	path := namespace + object.GetName()
	if o.stored[resource][path] != nil {
		fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", resource, path))
		return
	}
	stampTaints(object)
	o.store("ADDED", resource, path, object)
	answer(w, http.StatusCreated, object)
}

func (o *objects) update(w http.ResponseWriter, r *http.Request, resource, path string) {
	object := read(w, r)
	if object == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.stored[resource][path]
	switch {
	case old == nil:
		missing(w, resource, path)
		return
	case object.GetResourceVersion() != "" && object.GetResourceVersion() != old.GetResourceVersion():
		fail(w, http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf("%s %q has changed", resource, path))
		return
	}
	stampTaints(object)
	o.store("MODIFIED", resource, path, object)
	answer(w, http.StatusOK, object)
}

func (o *objects) delete(w http.ResponseWriter, resource, path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.stored[resource][path]
	if old == nil {
		missing(w, resource, path)
		return
	}
	o.store("DELETED", resource, path, old.DeepCopy())
	answer(w, http.StatusOK, old)
}

func (o *objects) deleteAll(w http.ResponseWriter, resource string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, path := range o.paths(resource) {
		o.store("DELETED", resource, path, o.stored[resource][path].DeepCopy())
	}
	answer(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
}

// stampTaints sets the time of the taints of a ResourceSlice, as the API server does.
func stampTaints(object *unstructured.Unstructured) {
	devices, _, _ := unstructured.NestedSlice(object.Object, "spec", "devices")
	for _, device := range devices {
		taints, _, _ := unstructured.NestedSlice(device.(map[string]any), "taints")
		for _, taint := range taints {
			if fields := taint.(map[string]any); fields["timeAdded"] == nil {
				fields["timeAdded"] = time.Now().UTC().Format(time.RFC3339)
			}
		}
		if len(taints) > 0 {
			device.(map[string]any)["taints"] = taints
		}
	}
	if len(devices) > 0 {
		object.Object["spec"].(map[string]any)["devices"] = devices
	}
}

// watch sends the changes of a resource after a version, and first all objects if the client wants them.
func (o *objects) watch(w http.ResponseWriter, r *http.Request, resource string) {
	control, encoder := http.NewResponseController(w), json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, object *unstructured.Unstructured) bool {
		return encoder.Encode(map[string]any{"type": kind, "object": object}) == nil && control.Flush() == nil
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			o.changed.Broadcast()
		case <-stop:
		}
	}()
	o.mu.Lock()
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	var first []*unstructured.Unstructured
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, path := range o.paths(resource) {
			first = append(first, o.stored[resource][path])
		}
		from = o.version
		mark := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": kinds[resource]}}
		mark.SetResourceVersion(strconv.Itoa(from))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		o.mu.Unlock()
		for _, object := range first {
			send("ADDED", object)
		}
		send("BOOKMARK", mark)
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	if control.Flush() != nil {
		return
	}
	for r.Context().Err() == nil && !o.closed {
		i, _ := slices.BinarySearchFunc(o.log, from+1, func(e objectChange, v int) int { return e.version - v })
		if i == len(o.log) {
			o.changed.Wait()
			continue
		}
		events := slices.Clone(o.log[i:])
		from = o.version
		o.mu.Unlock()
		for _, event := range events {
			if event.resource == resource && !send(event.kind, event.object) {
				o.mu.Lock()
				return
			}
		}
		o.mu.Lock()
	}
}
