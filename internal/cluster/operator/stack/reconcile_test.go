package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/cluster/operator/stack"
)

const text = `
version: 0.9.0
namespace: berth-system
components:
- {name: agent, kind: DaemonSet, object: berth-agent, image: registry.example/berth-agent:0.9.0}
gate: {timeout: 10m}
`

// world is an API server in memory that counts what is written.
type world struct {
	client.Client
	t *testing.T
	// api is the API server; its writes are not counted.
	api    client.WithWatch
	writes []string
	events *events.FakeRecorder
	log    bytes.Buffer
	clock  *testclock.FakeClock
	// fail returns the error of a request, which then does not reach the API server.
	fail func(verb string) error
	r    *stack.Reconciler
	// objects are those of the operator that cannot be brought in line.
	objects *attempts.Objects
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, events: events.NewFakeRecorder(100), clock: testclock.NewFakeClock(time.Unix(1e9, 0)), fail: func(string) error { return nil }}
	w.api = fake.NewClientBuilder().WithScheme(known).WithObjects(objects...).WithStatusSubresource(&v1alpha1.GPUStack{}).Build()
	write := func(verb string, do func() error) error {
		if err := w.fail(verb); err != nil {
			return err
		}
		w.writes = append(w.writes, verb)
		return do()
	}
	w.Client = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := w.fail("get"); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			return write("apply", func() error { return c.Apply(ctx, object, options...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			return write("update", func() error { return c.Update(ctx, object, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			return write(sub, func() error { return c.SubResource(sub).Patch(ctx, object, p, options...) })
		},
	})
	w.restart()
	return w
}

// restart makes another operator.
func (w *world) restart() {
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.objects = attempts.New(w.clock, log)
	w.r = stack.New(stack.Deps{Cached: w.api, Client: w.Client, Events: w.events, Objects: w.objects, Namespace: "berth-system", Clock: w.clock, Log: log})
}

// reconcile reconciles, and returns what was written.
func (w *world) reconcile() ([]string, reconcile.Result, error) {
	w.t.Helper()
	w.writes = nil
	result, err := w.r.Reconcile(w.t.Context(), reconcile.Request{})
	return w.writes, result, err
}

// settle reconciles once and expects these writes, and none in the second time.
func (w *world) settle(want ...string) {
	w.t.Helper()
	got, _, err := w.reconcile()
	if err != nil {
		w.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("writes (-want +got):\n%s", diff)
	}
	w.clock.Step(time.Hour)
	if writes, _, err := w.reconcile(); err != nil || len(writes) > 0 {
		w.t.Errorf("at rest it wrote %v, %v", writes, err)
	}
}

func (w *world) read() *v1alpha1.GPUStack {
	w.t.Helper()
	s := &v1alpha1.GPUStack{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: "default"}, s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// ready returns the condition.
func (w *world) ready() string {
	w.t.Helper()
	s := w.read()
	c := meta.FindStatusCondition(s.Status.Conditions, "Ready")
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %d/%d: %s", c.Status, c.Reason, s.Status.Validated, s.Status.Nodes, c.Message)
}

// checkNotKept expects one object that cannot be brought in line; "" means none.
func (w *world) checkNotKept(want string) {
	w.t.Helper()
	var got []string
	for _, p := range w.objects.NotKept() {
		got = append(got, p.Object.String()+": "+p.Reason)
	}
	if strings.Join(got, "; ") != want {
		w.t.Errorf("not kept are %q, want %q", got, want)
	}
}

func (w *world) checkReady(prefix string) {
	w.t.Helper()
	if got := w.ready(); !strings.HasPrefix(got, prefix) {
		w.t.Errorf("the condition is %q, want %q", got, prefix)
	}
}

// checkEvent expects one Event that contains each text; no text means no Event.
func (w *world) checkEvent(want ...string) {
	w.t.Helper()
	var got []string
	for len(w.events.Events) > 0 {
		got = append(got, <-w.events.Events)
	}
	if len(want) == 0 && len(got) > 0 || len(want) > 0 && len(got) != 1 {
		w.t.Fatalf("events %q, want %q", got, want)
	}
	for _, text := range want {
		if !strings.Contains(got[0], text) {
			w.t.Errorf("event %q, want %q in it", got[0], text)
		}
	}
}

// edit changes the GPUStack as somebody else.
func (w *world) edit(change func(*v1alpha1.GPUStack)) {
	w.t.Helper()
	s := w.read()
	change(s)
	if err := w.api.Update(w.t.Context(), s, client.FieldOwner("kubectl-edit")); err != nil {
		w.t.Fatal(err)
	}
}

func config(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-stack"}, Data: map[string]string{"stack.yaml": text}}
}

func (w *world) set(text string) {
	w.t.Helper()
	if err := w.api.Update(w.t.Context(), config(text)); err != nil {
		w.t.Fatal(err)
	}
}

func gpuNode(name string, state v1alpha1.GateState) *v1alpha1.GPUNode {
	return &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.GPUNodeStatus{Gate: &v1alpha1.GateStatus{State: state, Message: "message"}}}
}

// TestFollows: from nothing, through changes of the ConfigMap and the nodes, to a ConfigMap that is missing.
func TestFollows(t *testing.T) {
	w := newWorld(t, config(text), gpuNode("a", v1alpha1.GateHeld))
	w.settle("apply", "status")
	s := w.read()
	if s.Spec.Version != "0.9.0" || len(s.Spec.Components) != 1 || s.Spec.Gate.Timeout.Duration != 10*time.Minute || s.Spec.Gate.Mode != v1alpha1.GateEnforce {
		t.Errorf("the spec is %+v", s.Spec)
	}
	w.checkReady("False NodesNotValidated 0/1: a: message")

	// A node is validated.
	node := &v1alpha1.GPUNode{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: "a"}, node); err != nil {
		t.Fatal(err)
	}
	node.Status.Gate.State = v1alpha1.GateValidated
	if err := w.api.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	w.settle("status")
	w.checkReady("True Reconciled 1/1: 1 of 1")

	// The release is upgraded.
	w.set(strings.ReplaceAll(text, "0.9.0", "0.9.1"))
	w.settle("apply")
	if got := w.read().Spec.Version; got != "0.9.1" {
		t.Errorf("version %s, want that of the ConfigMap", got)
	}
	w.checkEvent()

	// A ConfigMap that cannot be read, and one that is missing, leave the last spec.
	w.set("version: [")
	w.settle("status")
	w.checkReady("False ConfigInvalid 1/1: ConfigMap berth-system/berth-stack is refused")
	w.restart()
	w.settle()
	if err := w.api.Delete(t.Context(), config("")); err != nil {
		t.Fatal(err)
	}
	w.settle("status")
	w.checkReady("False ConfigMissing 1/1: ConfigMap berth-system/berth-stack is missing")
	if got := w.read().Spec.Version; got != "0.9.1" {
		t.Errorf("version %s, want the last one", got)
	}
	if err := w.api.Create(t.Context(), config(text)); err != nil {
		t.Fatal(err)
	}
	w.settle("apply", "status")
	w.checkReady("True Reconciled")
	w.checkEvent()
}

// TestInvalid: each is reported with the place, and nothing is applied.
func TestInvalid(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"no YAML":           {"version: [", "yaml"},
		"an unknown field":  {text + "extra: 1\n", `unknown field "extra"`},
		"a nested one":      {strings.Replace(text, "timeout", "timeOut2", 1), `unknown field "timeOut2"`},
		"twice":             {text + "version: b\n", `"version" already set`},
		"another type":      {strings.Replace(text, "10m", "{}", 1), "cannot unmarshal"},
		"without a version": {strings.Replace(text, "version: 0.9.0", "", 1), "must have version, namespace and components"},
		"empty":             {"", "must have version, namespace and components"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, config(tc.text))
			w.settle() // No GPUStack yet: only the log says it.
			if !strings.Contains(w.log.String(), "ConfigInvalid") || strings.Count(w.log.String(), "\n") != 1 {
				t.Errorf("the log is %q, want one line with the reason", w.log.String())
			}
			w = newWorld(t, config(text))
			w.settle("apply", "status")
			w.set(tc.text)
			w.settle("status")
			if got := w.ready(); !strings.HasPrefix(got, "False ConfigInvalid") || !strings.Contains(got, tc.want) || !strings.Contains(got, "fix:") {
				t.Errorf("the condition is %q, want %q in it", got, tc.want)
			}
		})
	}
	t.Run("without the key", func(t *testing.T) {
		empty := config("")
		empty.Data = nil
		w := newWorld(t, empty)
		w.settle()
		if !strings.Contains(w.log.String(), "no key stack.yaml") {
			t.Errorf("the log is %q", w.log.String())
		}
	})
	t.Run("refused by the API server", func(t *testing.T) {
		w := newWorld(t, config(text))
		w.settle("apply", "status")
		w.set(strings.Replace(text, "DaemonSet", "Pod", 1))
		w.fail = func(verb string) error {
			if verb == "apply" {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "GPUStack"}, "default", field.ErrorList{field.NotSupported(field.NewPath("spec", "components"), "Pod", []string{"DaemonSet"})})
			}
			return nil
		}
		w.settle("status")
		w.checkReady("False ConfigInvalid")
		if got := w.read().Spec.Components[0].Kind; got != "DaemonSet" {
			t.Errorf("the kind is %s, want the last one", got)
		}
	})
}

// TestEditsAreUndone: by an apply, and by an update where others have added a field.
func TestEditsAreUndone(t *testing.T) {
	tests := map[string]struct {
		edit   func(*v1alpha1.GPUStack)
		writes []string
		field  string
	}{
		"a value":           {func(s *v1alpha1.GPUStack) { s.Spec.Version = "2" }, []string{"apply"}, "spec.version"},
		"a list":            {func(s *v1alpha1.GPUStack) { s.Spec.Components[0].Image = "evil" }, []string{"apply"}, "spec.components"},
		"one that is added": {func(s *v1alpha1.GPUStack) { s.Spec.PullSecrets = []string{"mine"} }, []string{"apply", "update"}, "spec.pullSecrets"},
		"a component that is added": {func(s *v1alpha1.GPUStack) {
			s.Spec.Components = append(s.Spec.Components, v1alpha1.StackComponent{Name: "x", Kind: "Deployment", Object: "x", Image: "x"})
		}, []string{"apply"}, "spec.components"},
		"labels":   {func(s *v1alpha1.GPUStack) { s.Labels = nil }, []string{"apply"}, "metadata.labels[app.kubernetes.io/managed-by]"},
		"the hash": {func(s *v1alpha1.GPUStack) { s.Annotations = nil }, []string{"apply"}, "metadata.annotations[berth.dev/spec-hash]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, config(text))
			w.settle("apply", "status")
			before := w.read()
			w.edit(tc.edit)
			w.restart() // Another operator undoes it, too.
			w.settle(tc.writes...)
			after := w.read()
			if diff := cmp.Diff(before.Spec, after.Spec); diff != "" || after.Labels["app.kubernetes.io/part-of"] != "berth" {
				t.Errorf("labels %v, spec (-want +got):\n%s", after.Labels, diff)
			}
			w.checkEvent("Warning EditUndone", tc.field, "values of the release")
		})
	}
	// What others add to labels and annotations stays.
	w := newWorld(t, config(text))
	w.settle("apply", "status")
	w.edit(func(s *v1alpha1.GPUStack) { s.Labels["team"], s.Annotations["tracking"] = "a", "b" })
	w.settle()
	w.edit(func(s *v1alpha1.GPUStack) { s.Spec.Version = "2" })
	w.settle("apply")
	if s := w.read(); s.Labels["team"] != "a" || s.Annotations["tracking"] != "b" {
		t.Errorf("labels %v, annotations %v: those of others are gone", s.Labels, s.Annotations)
	}
}

// TestDeletionUndone: with the status, and an Event.
func TestDeletionUndone(t *testing.T) {
	w := newWorld(t, config(text), gpuNode("a", v1alpha1.GateValidated))
	w.settle("apply", "status")
	w.checkEvent()
	if err := w.api.Delete(t.Context(), w.read()); err != nil {
		t.Fatal(err)
	}
	w.settle("apply", "status")
	w.checkReady("True Reconciled 1/1")
	w.checkEvent("Warning DeletionUndone", "uninstall Berth first")

	// One that is being deleted is left alone until it is gone.
	w.edit(func(s *v1alpha1.GPUStack) { s.Finalizers = []string{"example.com/wait"} })
	if err := w.api.Delete(t.Context(), w.read()); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.edit(func(s *v1alpha1.GPUStack) { s.Finalizers = nil })
	w.settle("apply", "status")
}

// TestNotServed: without its definition it is tried again in silence.
func TestNotServed(t *testing.T) {
	unserved := map[string]error{
		"get":   &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "berth.dev", Kind: "GPUStack"}},
		"apply": apierrors.NewNotFound(schema.GroupResource{Group: "berth.dev", Resource: "gpustacks"}, ""),
	}
	for verb, unserved := range unserved {
		w := newWorld(t, config(text))
		w.fail = func(of string) error {
			if of == verb {
				return unserved
			}
			return nil
		}
		if _, result, err := w.reconcile(); err != nil || result.RequeueAfter == 0 {
			t.Errorf("%s: %+v, %v; want another attempt without an error", verb, result, err)
		}
		w.fail = func(string) error { return nil }
		w.settle("apply", "status")
	}
}

// TestErrorsAreTriedAgain: with a growing delay, whatever wakes the controller, and with one line in the log.
func TestErrorsAreTriedAgain(t *testing.T) {
	for _, verb := range []string{"get", "apply", "status"} {
		w := newWorld(t, config(text))
		w.fail = func(of string) error {
			if of == verb {
				return errors.New("connection refused")
			}
			return nil
		}
		attempts := 0
		fail := w.fail
		w.fail = func(of string) error {
			if of == verb {
				attempts++
			}
			return fail(of)
		}
		for _, wait := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond} {
			_, result, err := w.reconcile()
			if err != nil || result.RequeueAfter != wait {
				t.Errorf("%s: again after %v, %v; want %v", verb, result.RequeueAfter, err, wait)
			}
			w.clock.Step(wait / 2)
			before := attempts
			if _, result, _ = w.reconcile(); result.RequeueAfter != wait/2 || attempts != before {
				t.Errorf("%s: woken while it waits: again after %v, %d attempts", verb, result.RequeueAfter, attempts-before)
			}
			w.clock.Step(wait / 2)
		}
		if attempts != 5 || strings.Count(w.log.String(), "GPUStack default: connection refused") != 1 {
			t.Errorf("%s: %d attempts, want 5; log %s", verb, attempts, w.log.String())
		}
		if verb == "apply" {
			w.checkNotKept("GPUStack default: apply GPUStack default: connection refused")
		}
		w.fail = func(string) error { return nil }
		w.clock.Step(time.Minute)
		w.reconcile()
		w.settle()
		w.checkReady("True Reconciled")
	}
}
