package podwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	static = "0123456789abcdef0123456789abcdef"
	victim = "11111111-2222-3333-4444-555555555555"
)

// started is when the agents of the tests start.
var started = time.Date(2026, 11, 22, 10, 0, 0, 5e8, time.UTC)

func pod(name, uid, phase, mirrorOf string) *unstructured.Unstructured {
	metadata := map[string]any{"namespace": "ns", "name": name, "uid": uid}
	if mirrorOf != "" {
		metadata["annotations"] = map[string]any{mirrorAnnotation: mirrorOf}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": map[string]any{"phase": phase},
		"spec": map[string]any{"nodeName": "node", "containers": []any{map[string]any{"name": "main"}}},
	}}
}

// start runs a watch over the objects until the test ends.
func start(t *testing.T, objects ...runtime.Object) (*Watch, *fake.FakeDynamicClient) {
	t.Helper()
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{podsResource: "PodList"}, objects...)
	// The fake loses events between its list and its watch; a real API server does not.
	watching := make(chan struct{}, 100)
	api.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		stream, err := api.Tracker().Watch(podsResource, action.GetNamespace())
		watching <- struct{}{}
		return true, stream, err
	})
	w := New(Deps{API: api, NodeName: "node", Start: started, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-watching
	return w, api
}

// await waits for a state.
func await(t *testing.T, w *Watch, uid string, want State) Pod {
	t.Helper()
	for {
		pod, state := w.Pod(uid)
		if state == want {
			return pod
		}
		select {
		case <-w.Changed():
		case <-t.Context().Done():
			t.Fatalf("pod %s is in state %v, want %v", uid, state, want)
		}
	}
}

func TestStates(t *testing.T) {
	w, api := start(t, pod("runs", "uid-runs", "Running", ""), pod("done", "uid-done", "Succeeded", ""),
		pod("failed", "uid-failed", "Failed", ""), pod("again", "uid-first", "Running", ""))
	pods := api.Resource(podsResource).Namespace("ns")
	for uid, want := range map[string]State{"uid-runs": Living, "uid-done": Ended, "uid-failed": Ended, "uid-first": Living} {
		await(t, w, uid, want)
	}
	if _, state := w.Pod("uid-new"); state != Unknown {
		t.Errorf("a pod that was never seen is in state %v, want unknown", state)
	}
	if err := pods.Delete(t.Context(), "runs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-runs", Ended)
	if _, err := pods.Update(t.Context(), pod("again", "uid-second", "Running", ""), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-second", Living)
	await(t, w, "uid-first", Ended)
}

// TestRefused checks that a pod that the kubelet refuses is counted once, under each resource that it requested, and that neither a pod
// from before the start nor one that has failed otherwise is.
func TestRefused(t *testing.T) {
	refuse := func(name, reason string, created time.Time) *unstructured.Unstructured {
		one := pod(name, "uid-"+name, "Failed", "")
		one.SetCreationTimestamp(metav1.NewTime(created))
		one.Object["status"].(map[string]any)["reason"] = reason
		one.Object["spec"].(map[string]any)["containers"] = []any{map[string]any{
			"name": "main", "resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "2", "example.com/nic": "1", "memory": "1Gi"}},
		}}
		return one
	}
	w, api := start(t, refuse("old", refusedReason, started.Add(-time.Minute)), refuse("listed", refusedReason, started), refuse("evicted", "Evicted", started))
	pods := api.Resource(podsResource).Namespace("ns")
	fresh := pod("fresh", "uid-fresh", "Pending", "")
	fresh.SetCreationTimestamp(metav1.NewTime(started.Add(time.Minute)))
	if _, err := pods.Create(t.Context(), fresh, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-fresh", Living)
	for range 2 {
		if _, err := pods.Update(t.Context(), refuse("fresh", refusedReason, started.Add(time.Minute)), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pods.Create(t.Context(), pod("last", "uid-last", "Running", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-last", Living)
	for _, uid := range []string{"uid-old", "uid-listed", "uid-evicted", "uid-fresh"} {
		await(t, w, uid, Ended)
	}
	if diff := cmp.Diff(map[string]uint64{"nvidia.com/gpu": 2, "example.com/nic": 2}, w.Refused()); diff != "" {
		t.Errorf("counted as refused (-want +got):\n%s", diff)
	}
	for i := range 2 * maxRefused {
		w.countRefused(Pod{Counted: map[string]int{fmt.Sprint("example.com/", i): 1}})
	}
	if n := len(w.Refused()); n != maxRefused {
		t.Errorf("%d resources are counted, want at most %d", n, maxRefused)
	}
}

// TestMirrors checks that a static pod's UID is not its mirror's, that no change of a mirror ends it, and that no
// annotation names another kind of pod.
func TestMirrors(t *testing.T) {
	w, api := start(t, pod("static-node", "uid-mirror", "Running", static), pod("victim", victim, "Running", ""),
		pod("forged", "uid-forged", "Failed", victim), pod("last", "uid-last", "Running", ""))
	await(t, w, "uid-last", Living)
	await(t, w, victim, Living) // The pods of a list come in any order.
	for got, _ := w.Pod(static); got.Name == ""; got, _ = w.Pod(static) {
		<-w.Changed()
	}
	if got, state := w.Pod(static); state != Unknown || got.Name != "static-node" || !got.Static {
		t.Errorf("the static pod is %+v in state %v, want its name and no state", got, state)
	}
	if got, state := w.Pod(victim); state != Living || got.Name != "victim" {
		t.Errorf("the pod that a forged mirror names is %+v in state %v, want it running", got, state)
	}
	pods := api.Resource(podsResource).Namespace("ns")
	if _, err := pods.Create(t.Context(), pod("copy", "uid-copy", "Failed", static), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), pod("later", "uid-later", "Running", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-later", Living)
	if got, state := w.Pod(static); state != Unknown || got.Name != "" {
		t.Errorf("with two mirrors the static pod is %+v in state %v, want nothing known", got, state)
	}
	for _, name := range []string{"copy", "static-node", "forged"} {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pods.Create(t.Context(), pod("latest", "uid-latest", "Running", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-latest", Living)
	if err := w.Resolve(t.Context(), []string{static, victim}); err != nil {
		t.Fatal(err)
	}
	if got, state := w.Pod(static); state != Unknown || !got.Static {
		t.Errorf("without a mirror the static pod is %+v in state %v, want a static pod of which nothing else is known", got, state)
	}
	if _, state := w.Pod(victim); state != Living {
		t.Errorf("the victim is in state %v, want running", state)
	}
}

// TestResolve checks that a UID that was never seen has ended when a later list does not have it.
func TestResolve(t *testing.T) {
	w, api := start(t, pod("runs", "uid-runs", "Running", ""))
	await(t, w, "uid-runs", Living)
	if err := w.Resolve(t.Context(), []string{"uid-gone", "uid-runs"}); err != nil {
		t.Fatal(err)
	}
	await(t, w, "uid-gone", Ended)
	await(t, w, "uid-runs", Living)
	asked := len(api.Actions())
	if err := w.Resolve(t.Context(), []string{"uid-gone", "uid-runs"}); err != nil || len(api.Actions()) != asked {
		t.Errorf("with nothing unknown: %v, and a request was sent to the API server", err)
	}
	for _, action := range api.Actions() {
		if list, ok := action.(clienttesting.ListAction); ok && action.GetVerb() == "list" && list.GetListRestrictions().Fields.String() != "spec.nodeName=node" {
			t.Errorf("a list is for %q, want this node's pods only", list.GetListRestrictions().Fields)
		}
	}
}

// TestCurrent checks that the state of the API server is reported, with the reason.
func TestCurrent(t *testing.T) {
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{podsResource: "PodList"})
	api.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil,
			errors.New("no route")
	})
	w := New(Deps{API: api, NodeName: "node", Start: started, Log: slog.New(slog.DiscardHandler)})
	if answers, err := w.Current(); answers || err != nil {
		t.Errorf("before the first call: %v, %v", answers, err)
	}
	if _, err := w.list(t.Context(), metav1.ListOptions{}); err == nil {
		t.Fatal("the list succeeded")
	}
	if answers, err := w.Current(); answers || err == nil || err.Error() != "watch the pods of node node: no route" {
		t.Errorf("after a call that failed: %v, %v", answers, err)
	}
	// The address of a watch has another timeout each time; the error must not, or each failure would be a new problem.
	w.noteCall(&url.Error{Op: "Get", URL: "https://api/pods?timeoutSeconds=421&watch=true", Err: errors.New("no route")})
	if _, err := w.Current(); err == nil || err.Error() != "watch the pods of node node: no route" {
		t.Errorf("after a request that failed: %v", err)
	}
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		spec    string
		counted int
		want    []Container
	}{
		"two containers": {`{"containers": [
			{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}}]}`, 3,
			[]Container{{Name: "a", Devices: map[string]int{"nvidia.com/gpu": 2}},
				{Name: "b", Devices: map[string]int{"nvidia.com/gpu": 1}}}},
		"an init container needs no more": {`{"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
			"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 2,
			[]Container{{Name: "i", Init: true, Devices: map[string]int{"nvidia.com/gpu": 2}},
				{Name: "a", Devices: map[string]int{"nvidia.com/gpu": 2}}}},
		"an init container needs more": {`{"initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 4,
			[]Container{{Init: true, Devices: map[string]int{"nvidia.com/gpu": 4}}, {Devices: map[string]int{"nvidia.com/gpu": 2}}}},
		"a sidecar is no init container": {`{"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
			"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 3,
			[]Container{{Name: "s", Devices: map[string]int{"nvidia.com/gpu": 1}},
				{Name: "a", Devices: map[string]int{"nvidia.com/gpu": 2}}}},
		"an init container beside a sidecar": {`{"initContainers": [
			{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, {"resources": {"limits": {"nvidia.com/gpu": "4"}}}],
			"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}`, 5,
			[]Container{{Devices: map[string]int{"nvidia.com/gpu": 1}},
				{Init: true, Devices: map[string]int{"nvidia.com/gpu": 4}}, {Devices: map[string]int{"nvidia.com/gpu": 2}}}},
		"another resource": {`{"containers": [{"resources": {"limits": {"cpu": "2"}}}]}`, 0, []Container{{}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "Pod", "spec": ` + tc.spec + `}`)); err != nil {
				t.Fatal(err)
			}
			got, err := parse(object)
			if err != nil {
				t.Fatal(err)
			}
			if got.Counted["nvidia.com/gpu"] != tc.counted {
				t.Errorf("the scheduler counts %d, want %d", got.Counted["nvidia.com/gpu"], tc.counted)
			}
			if diff := cmp.Diff(tc.want, got.Containers); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsGone: of 10,000 pods that come and go, static ones and their mirrors included, the last that have ended are known, and nothing
// else is kept.
func TestPodsGone(t *testing.T) {
	w := New(Deps{NodeName: "node", Start: started, Log: slog.New(slog.DiscardHandler)})
	for i := range 10_000 {
		mirror := ""
		if i%3 == 0 {
			mirror = fmt.Sprintf("%032x", i)
		}
		made, err := transform(pod(fmt.Sprint("pod-", i), fmt.Sprint("uid-", i), "Running", mirror))
		if err != nil {
			t.Fatal(err)
		}
		w.put(made)
		w.put(made)
		w.drop(made)
	}
	if len(w.pods) > 0 || len(w.byUID) > 0 || len(w.ended) > maxEnded || len(w.endedOrder) > maxEnded {
		t.Errorf("%d pods, %d UIDs and %d ended ones are kept", len(w.pods), len(w.byUID), len(w.ended))
	}
}
