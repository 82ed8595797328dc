package definitions

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	resourceapi "k8s.io/api/resource/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

const (
	crdName   = "gpunodes.berth.dev"
	className = "gpu.berth.dev"
)

// world is an API server with a reconciler of one kind.
type world struct {
	*reconciler
	t *testing.T
	// api is the API server; its writes are not counted.
	api client.WithWatch
	// writes are the writes of the reconciler, as "verb name".
	writes []string
	// fail returns the error of a request of the reconciler, which then does not reach the API server.
	fail func(verb string) error
	// drop is a field that the API server drops.
	drop    []string
	stopped error
	logged  bytes.Buffer
	events  *events.FakeRecorder
	now     *clocktesting.FakeClock
}

func newWorld(t *testing.T, k kind) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensions.AddToScheme, resourceapi.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range []kind{definitionKind(), classKind()} {
		mapper.Add(k.GroupVersionKind, meta.RESTScopeRoot)
	}
	w := &world{t: t, events: events.NewFakeRecorder(200), now: clocktesting.NewFakeClock(time.Unix(1e9, 0)), fail: func(string) error { return nil }}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithReturnManagedFields().Build()
	counted := interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := w.fail("get"); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			w.writes = append(w.writes, "apply "+object.(interface{ GetName() string }).GetName())
			if err := w.fail("apply"); err != nil {
				return err
			}
			if len(w.drop) > 0 {
				unstructured.RemoveNestedField(object.(interface{ UnstructuredContent() map[string]any }).UnstructuredContent(), w.drop...)
			}
			return c.Apply(ctx, object, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			w.writes = append(w.writes, "update "+object.GetName())
			if err := w.fail("update"); err != nil {
				return err
			}
			return c.Update(ctx, object, options...)
		},
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			return fmt.Errorf("create of %s: the operator applies", object.GetName())
		},
		Delete: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.DeleteOption) error {
			return fmt.Errorf("delete of %s: the operator deletes nothing", object.GetName())
		},
	})
	var err error
	w.reconciler, err = newReconciler(Deps{Client: counted, Events: w.events, Log: slog.New(slog.NewTextHandler(&w.logged, nil)),
		Objects: attempts.New(w.now, slog.New(slog.NewTextHandler(&w.logged, nil))), Clock: w.now, Stop: func(err error) { w.stopped = err }}, k)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// reconcile attempts to bring one object in line, without waiting after the attempt before.
func (w *world) reconcile(req request) (reconcile.Result, error) {
	w.t.Helper()
	return w.keep(w.t.Context(), req)
}

// must reconciles one object and expects no error.
func (w *world) must(req request) reconcile.Result {
	w.t.Helper()
	result, err := w.reconcile(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// all reconciles all objects.
func (w *world) all() {
	w.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.wanted)) {
		w.must(request{name: name})
	}
}

// read returns an object of the API server.
func (w *world) read(name string) *unstructured.Unstructured {
	w.t.Helper()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(w.kind.GroupVersionKind)
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, live); err != nil {
		w.t.Fatal(err)
	}
	return live
}

// edit changes an object as another program.
func (w *world) edit(name, manager string, change func(*unstructured.Unstructured)) {
	w.t.Helper()
	live := w.read(name)
	change(live)
	if err := w.api.Update(w.t.Context(), live, client.FieldOwner(manager)); err != nil {
		w.t.Fatal(err)
	}
}

// add creates an object as another program: the embedded one, changed.
func (w *world) add(name, manager string, change func(*unstructured.Unstructured)) {
	w.t.Helper()
	object := w.wanted[name].object.DeepCopy()
	object.SetLabels(nil)
	annotations := object.GetAnnotations()
	delete(annotations, hashAnnotation)
	object.SetAnnotations(annotations)
	change(object)
	if err := w.api.Create(w.t.Context(), object, client.FieldOwner(manager)); err != nil {
		w.t.Fatal(err)
	}
}

// checkEqual compares an object with the embedded one.
func (w *world) checkEqual(name string) {
	w.t.Helper()
	live := w.read(name)
	paths, err := differences(live, w.wanted[name])
	if err != nil || len(paths) > 0 {
		w.t.Errorf("%s differs in %v (%v), want the embedded object", name, paths, err)
	}
	if live.GetLabels()[partOf] != "berth" || live.GetLabels()[managedBy] != "berth-operator" {
		w.t.Errorf("%s has the labels %v, want those of the operator", name, live.GetLabels())
	}
}

// checkEvent expects one Event that contains each text; no text means no Event.
func (w *world) checkEvent(want ...string) {
	w.t.Helper()
	var got []string
	for len(w.events.Events) > 0 {
		got = append(got, <-w.events.Events)
	}
	if len(want) == 0 {
		if len(got) > 0 {
			w.t.Errorf("events %q, want none", got)
		}
		return
	}
	if len(got) != 1 {
		w.t.Fatalf("events %q, want one", got)
	}
	for _, text := range want {
		if !strings.Contains(got[0], text) {
			w.t.Errorf("event %q, want %q in it", got[0], text)
		}
	}
}

// checkLog expects a line of the log with the text.
func (w *world) checkLog(want string) {
	w.t.Helper()
	if !strings.Contains(w.logged.String(), want) {
		w.t.Errorf("log:\n%swant %q in it", w.logged.String(), want)
	}
}

func setSpec(value any, fields ...string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(object.Object, value, append([]string{"spec"}, fields...)...); err != nil {
			panic(err)
		}
	}
}

func setVersion(version string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		object.SetAnnotations(merged(object.GetAnnotations(), map[string]string{"berth.dev/schema-version": version}))
	}
}

func unchanged(*unstructured.Unstructured) {}

// served says which versions an API server serves.
type served map[string]*metav1.APIResourceList

func (s served) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	if list, ok := s[version]; ok {
		return list, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, version)
}

// stubborn is an API server of which a webhook sets a field.
type stubborn struct{ client.Client }

func (s *stubborn) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	return unstructured.SetNestedField(object.(interface{ UnstructuredContent() map[string]any }).UnstructuredContent(), "example.com/gpu", "spec", "extendedResourceName")
}

func (s *stubborn) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	return unstructured.SetNestedField(object.(*unstructured.Unstructured).Object, "example.com/gpu", "spec", "extendedResourceName")
}
