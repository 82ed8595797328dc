package devicemanager

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const nodeName = "node-1"

// cluster has the pods as the API returns them. It simulates the scheduler, and serves the pods over HTTP as an API
// server does.
type cluster struct {
	// lag is the maximum delay of a watch.
	lag time.Duration

	// objects are those of Dynamic Resource Allocation.
	objects *objects

	mu      sync.Mutex
	changed *sync.Cond
	version int
	pods    map[types.UID]*v1.Pod
	// counted is how many GPUs the scheduler counts for each pod.
	counted map[types.UID]int
	log     []change
	away    bool
	closed  bool
	streams map[*http.ResponseController]bool
}

// change is one event of a watch.
type change struct {
	version int
	kind    string
	pod     *v1.Pod
}

func newCluster(lag time.Duration) *cluster {
	c := &cluster{lag: lag, objects: newObjects(), pods: map[types.UID]*v1.Pod{}, counted: map[types.UID]int{}, streams: map[*http.ResponseController]bool{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// schedule waits until the scheduler would assign a pod to the node, and creates it.
func (c *cluster) schedule(pod *v1.Pod, gpus int, capacity func() int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.fits(gpus, capacity()) {
		// A change of the capacity has no signal.
		timer := time.AfterFunc(50*time.Millisecond, c.changed.Broadcast)
		c.changed.Wait()
		timer.Stop()
	}
	c.counted[pod.UID] = gpus
	c.note("ADDED", pod.DeepCopy())
}

// trySchedule is schedule for a pod that does not wait.
func (c *cluster) trySchedule(pod *v1.Pod, gpus, capacity int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fits(gpus, capacity) {
		return false
	}
	c.counted[pod.UID] = gpus
	c.note("ADDED", pod.DeepCopy())
	return true
}

// fits reports whether a pod fits beside those that have not ended. The caller holds mu.
func (c *cluster) fits(gpus, capacity int) bool {
	used := 0
	for uid, p := range c.pods {
		if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
			used += c.counted[uid]
		}
	}
	return gpus == 0 || used+gpus <= capacity // The GPUs of a claim are not counted here.
}

// update changes a pod if it still exists.
func (c *cluster) update(uid types.UID, change func(*v1.Pod)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pods[uid]
	if old == nil {
		return
	}
	pod := old.DeepCopy()
	change(pod)
	c.note("MODIFIED", pod)
}

func (c *cluster) phase(uid types.UID, phase v1.PodPhase) {
	c.update(uid, func(p *v1.Pod) { p.Status.Phase = phase })
}

// remove removes a pod's object.
func (c *cluster) remove(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.pods[uid]; old != nil {
		c.note("DELETED", old.DeepCopy())
		delete(c.pods, uid)
		delete(c.counted, uid)
	}
}

func (c *cluster) note(kind string, pod *v1.Pod) {
	c.version++
	pod.ResourceVersion = strconv.Itoa(c.version)
	pod.APIVersion, pod.Kind = "v1", "Pod"
	c.pods[pod.UID] = pod
	c.log = append(c.log, change{c.version, kind, pod})
	c.changed.Broadcast()
}

// terminal reports whether a pod is finished or deleted according to the API.
func (c *cluster) terminal(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[uid]
	return p == nil || p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// serve answers over HTTP until the test ends.
func (c *cluster) serve(t testing.TB) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: c}
	go server.Serve(listener)
	t.Cleanup(func() {
		c.mu.Lock()
		c.closed = true
		c.changed.Broadcast()
		c.mu.Unlock()
		c.objects.close()
		server.Close()
	})
	return "http://" + listener.Addr().String()
}

// leave makes the API server stop or resume responding; watches end.
func (c *cluster) leave(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
	c.changed.Broadcast()
}

func (c *cluster) isAway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away || c.closed
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.isAway() {
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the API server is away")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	switch _, _, ours := split(r.URL.Path); {
	case ours:
		c.objects.ServeHTTP(w, r)
	case r.Method != http.MethodGet:
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, "this API server is read-only")
	case slices.Equal(parts, []string{"api", "v1", "pods"}) && (query.Get("watch") == "true" || query.Get("watch") == "1"):
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		c.stream(w, r, from, query.Get("sendInitialEvents") == "true")
	case slices.Equal(parts, []string{"api", "v1", "pods"}):
		c.list(w)
	case len(parts) == 6 && parts[2] == "namespaces" && parts[4] == "pods":
		c.get(w, parts[3], parts[5])
	default:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "there is no "+r.URL.Path)
	}
}

func (c *cluster) get(w http.ResponseWriter, namespace, name string) {
	c.mu.Lock()
	var found *v1.Pod
	for _, p := range c.pods {
		if p.Namespace == namespace && p.Name == name {
			found = p
		}
	}
	c.mu.Unlock()
	if found == nil {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found", name))
		return
	}
	answer(w, http.StatusOK, found)
}

func (c *cluster) list(w http.ResponseWriter) {
	c.mu.Lock()
	list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = strconv.Itoa(c.version)
	for _, p := range c.pods {
		list.Items = append(list.Items, *p)
	}
	c.mu.Unlock()
	slices.SortFunc(list.Items, func(a, b v1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	answer(w, http.StatusOK, list)
}

// stream is a watch.
func (c *cluster) stream(w http.ResponseWriter, r *http.Request, from int, initial bool) {
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, object any) bool {
		return encoder.Encode(map[string]any{"type": kind, "object": object}) == nil && control.Flush() == nil
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			c.changed.Broadcast()
		case <-stop:
		}
	}()
	c.mu.Lock()
	if initial {
		var pods []*v1.Pod
		for _, p := range c.pods {
			pods = append(pods, p)
		}
		from = c.version
		c.mu.Unlock()
		for _, p := range pods {
			send("ADDED", p)
		}
		send("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(from), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
		}})
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if control.Flush() != nil {
		return
	}
	for r.Context().Err() == nil && !c.away && !c.closed {
		i, _ := slices.BinarySearchFunc(c.log, from+1, func(e change, v int) int { return e.version - v })
		if i == len(c.log) {
			c.changed.Wait()
			continue
		}
		events := slices.Clone(c.log[i:])
		c.mu.Unlock()
		if c.lag > 0 {
			time.Sleep(rand.N(c.lag))
		}
		for _, event := range events {
			if !send(event.kind, event.pod) {
				c.mu.Lock()
				return
			}
			from = event.version
		}
		c.mu.Lock()
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(object)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}
