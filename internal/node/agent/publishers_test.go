package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/crds"
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// apiWorld is an API server with the problems and conditions of an agent.
type apiWorld struct {
	conditions *nodeapi.Conditions
	mu         sync.Mutex
	problems   map[string]error
}

func newAPIWorld() *apiWorld {
	return &apiWorld{conditions: nodeapi.NewConditions(clock.RealClock{}, func(nodeapi.Event) {}), problems: map[string]error{}}
}

func (w *apiWorld) workers(client dynamic.Interface) *workers {
	return newWorkers(workersDeps{
		Client: client, NodeName: fakeapi.NodeName, Retry: nodeapi.Retry{Clock: clock.RealClock{}, NodeName: fakeapi.NodeName}, Conditions: w.conditions,
		Report: func(source, _ string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.problems[source] = err
		},
		Log: slog.New(slog.DiscardHandler),
	})
}

// setAll sets a value of each worker.
func setAll(ctx context.Context, workers *workers) {
	workers.SetCondition(nodeapi.NodeCondition{Reason: "Unhealthy", Message: "GPU 0"})
	workers.SetTaint(true)
	workers.SetMIGState(ctx, "success", false)
	workers.SetGPUNode(&v1alpha1.GPUNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "GPUNode"}, ObjectMeta: metav1.ObjectMeta{Name: fakeapi.NodeName}})
}

// TestStandaloneWritesNothing checks that without an API server everything can be set, and that Run returns immediately.
func TestStandaloneWritesNothing(t *testing.T) {
	t.Parallel()
	workers := newAPIWorld().workers(nil)
	setAll(t.Context(), workers)
	workers.SetMIGState(t.Context(), "pending", true)
	if err := workers.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEachObjectHasAWorker checks that, while the writes of one object fail, the others are written, and that the
// failure is a problem until a write succeeds.
func TestEachObjectHasAWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, w := fakeapi.New(t), newAPIWorld()
		api.Intercept(func(r fakeapi.Request) error {
			if r.Resource == "gpunodes" && r.Verb != "get" {
				return errors.New("no route")
			}
			return nil
		})
		workers := w.workers(api)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- workers.Run(ctx) }()
		setAll(ctx, workers)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := api.Node().GetLabels()[configwatch.LabelMIGState]; got != "success" {
			t.Errorf("the label of the MIG state is %q, want success", got)
		}
		w.mu.Lock()
		if w.problems["gpunode"] == nil || w.problems["node-taint"] != nil {
			t.Errorf("problems are %v, want one of the GPUNode alone", w.problems)
		}
		w.mu.Unlock()
		api.Intercept(nil)
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		if w.problems["gpunode"] != nil {
			t.Errorf("after the repair: %v", w.problems["gpunode"])
		}
		w.mu.Unlock()
		began := time.Now()
		if workers.SetMIGState(ctx, "pending", true); time.Since(began) > stateTimeout || api.Node().GetLabels()[configwatch.LabelMIGState] != "pending" {
			t.Errorf("after %s the label is not there", time.Since(began))
		}
		cancel()
		<-ended
	})
}

// TestSetMIGCondition checks that an empty status removes the condition.
func TestSetMIGCondition(t *testing.T) {
	t.Parallel()
	w := newAPIWorld()
	workers := w.workers(nil)
	workers.SetMIGCondition(metav1.ConditionTrue, "Applied", "every GPU is partitioned as wanted")
	if all := w.conditions.All(); len(all) != 1 || all[0].Type != nodeapi.ConditionMIG {
		t.Errorf("conditions are %v", all)
	}
	if workers.SetMIGCondition("", "", ""); len(w.conditions.All()) != 0 {
		t.Errorf("conditions are %v, want none", w.conditions.All())
	}
}

// TestDefinitionIsMadeAgain checks that the GPUNode comes back within seconds when its definition was deleted and is made again, also
// after failed writes, and that the agent asks for nothing in between.
func TestDefinitionIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, w := fakeapi.New(t), newAPIWorld()
		definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		definition := func(uid, established string) *unstructured.Unstructured {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(crds.GPUNodes(), &object.Object); err != nil {
				t.Fatal(err)
			}
			object.Object["metadata"].(map[string]any)["uid"] = uid
			object.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": established}}}
			return object
		}
		node := func() error {
			_, err := api.Resource(v1alpha1.GPUNodes()).Get(t.Context(), fakeapi.NodeName, metav1.GetOptions{})
			return err
		}
		if _, err := api.Resource(definitions).Create(t.Context(), definition("1", "True"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		workers := w.workers(api)
		go func() { ended <- workers.Run(ctx) }()
		setAll(ctx, workers)
		time.Sleep(time.Minute)
		if err := node(); err != nil {
			t.Fatal(err)
		}
		// The API server deletes the objects with their definition.
		if err := api.Resource(v1alpha1.GPUNodes()).Delete(ctx, fakeapi.NodeName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := api.Resource(definitions).Delete(ctx, "gpunodes.berth.dev", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		api.Intercept(func(r fakeapi.Request) error {
			if r.Resource == "gpunodes" {
				return apierrors.NewNotFound(v1alpha1.GPUNodes().GroupResource(), fakeapi.NodeName)
			}
			return nil
		})
		time.Sleep(time.Second)
		w.mu.Lock()
		if w.problems["definition"] == nil {
			t.Error("no problem says that the definition is missing")
		}
		w.mu.Unlock()
		api.ClearActions()
		time.Sleep(5 * time.Minute)
		if got := slices.DeleteFunc(api.Actions(), func(a clienttesting.Action) bool { return a.GetResource().Resource == "nodes" }); len(got) > 0 {
			t.Errorf("requests while the definition was missing: %v", got)
		}
		// A change of the object, whose write fails until the definition is there: the pause between attempts grows to a minute.
		changed := &v1alpha1.GPUNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "GPUNode"}, ObjectMeta: metav1.ObjectMeta{Name: fakeapi.NodeName}}
		changed.Status.AgentVersion = "changed"
		workers.SetGPUNode(changed)
		time.Sleep(5 * time.Minute)
		if _, err := api.Resource(definitions).Create(ctx, definition("2", "False"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		api.Intercept(nil)
		if _, err := api.Resource(definitions).Update(ctx, definition("2", "True"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for node() != nil && time.Since(began) < 10*time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the GPUNode was back %s after its definition, want at most 6 s", took)
		}
		synctest.Wait()
		w.mu.Lock()
		if w.problems["definition"] != nil || w.problems["gpunode"] != nil {
			t.Errorf("problems are %v, want none", w.problems)
		}
		w.mu.Unlock()
		// What was seen counts while the API server does not answer, and a change in that time is seen after it.
		api.Intercept(func(r fakeapi.Request) error {
			if r.Resource == "customresourcedefinitions" {
				return errors.New("no route")
			}
			return nil
		})
		old := definition("2", "True")
		old.SetAnnotations(nil)
		if _, err := api.FakeDynamicClient.Resource(definitions).Update(ctx, old, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		if w.problems["definition"] != nil {
			t.Errorf("while the API server does not answer: %v", w.problems["definition"])
		}
		w.mu.Unlock()
		api.Intercept(nil)
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		if w.problems["definition"] == nil {
			t.Error("no problem says that the definition is old")
		}
		w.mu.Unlock()
		cancel()
		<-ended
	})
}

// TestDefinitionUnwatched checks that an agent that may not watch the definition, as with the chart of an earlier version, or that cannot,
// goes on looking for a missing one with growing pauses.
func TestDefinitionUnwatched(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	for title, answer := range map[string]error{
		"not permitted": apierrors.NewForbidden(resource, "gpunodes.berth.dev", errors.New("no role")),
		"away":          errors.New("no route"),
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, w := fakeapi.New(t), newAPIWorld()
				requests := 0
				api.Intercept(func(r fakeapi.Request) error {
					if r.Resource != resource.Resource {
						return nil
					}
					requests++
					if r.Verb == "watch" {
						return answer
					}
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.workers(api).Run(ctx) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				w.mu.Lock()
				if w.problems["definition"] == nil || requests < 60 || requests > 80 {
					t.Errorf("the problem is %v after %d requests in an hour, want one each minute", w.problems["definition"], requests)
				}
				w.mu.Unlock()
				cancel()
				<-ended
			})
		})
	}
}
