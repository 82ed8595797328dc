package definitions

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func kinds() map[string]kind {
	return map[string]kind{crdName: definitionKind(), className: classKind()}
}

// TestFromNothing: all objects are created, each with one write, and at rest nothing is written.
func TestFromNothing(t *testing.T) {
	for name, k := range kinds() {
		t.Run(k.Kind, func(t *testing.T) {
			w := newWorld(t, k)
			w.all()
			if len(w.writes) != len(w.wanted) {
				t.Errorf("%d writes for %d objects: %v", len(w.writes), len(w.wanted), w.writes)
			}
			w.checkEqual(name)
			w.checkEvent()
			w.checkLog("msg=Created kind=" + k.Kind + " name=" + name)
			w.writes = nil
			for range 3 {
				w.all()
			}
			if len(w.writes) > 0 {
				t.Errorf("at rest it writes %v", w.writes)
			}
		})
	}
}

// TestDefaultsAreNoDifference: what the API server adds to a definition by itself causes no write.
func TestDefaultsAreNoDifference(t *testing.T) {
	w := newWorld(t, definitionKind())
	w.all()
	w.writes = nil
	w.edit(crdName, "kube-apiserver", func(object *unstructured.Unstructured) {
		setSpec(map[string]any{"strategy": "None"}, "conversion")(object)
		setSpec("of a newer API", "fieldOfANewerAPI")(object)
		if err := unstructured.SetNestedField(object.Object, "True", "status", "acceptedNames", "kind"); err != nil {
			t.Fatal(err)
		}
	})
	w.all()
	if len(w.writes) > 0 {
		t.Errorf("it writes %v", w.writes)
	}
}

// TestEditsAreUndone: by any manager, of values, of fields that Berth does not set, and of what the operator adds.
func TestEditsAreUndone(t *testing.T) {
	tests := map[string]struct {
		name   string
		edit   func(*unstructured.Unstructured)
		writes []string
		field  string
	}{
		"a value of a definition": {crdName, setSpec("gpunodelist", "names", "listKind"), []string{"apply"}, "spec.names.listKind"},
		"a list of a definition":  {crdName, setSpec([]any{"gn"}, "names", "shortNames"), []string{"apply"}, "spec.names.shortNames"},
		"a field that is removed": {crdName, func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "spec", "scope") }, []string{"apply"}, "spec.scope"},
		"a field that is added":   {crdName, setSpec(true, "preserveUnknownFields"), []string{"apply", "update"}, "spec.preserveUnknownFields"},
		"the schema version": {crdName, func(o *unstructured.Unstructured) {
			annotations := o.GetAnnotations()
			delete(annotations, "berth.dev/schema-version")
			o.SetAnnotations(annotations)
		}, []string{"apply"}, "metadata.annotations[berth.dev/schema-version]"},
		"the labels": {crdName, func(o *unstructured.Unstructured) { o.SetLabels(nil) }, []string{"apply"}, "metadata.labels[app.kubernetes.io/managed-by]"},
		"the hash": {crdName, func(o *unstructured.Unstructured) {
			annotations := o.GetAnnotations()
			delete(annotations, hashAnnotation)
			o.SetAnnotations(annotations)
		}, []string{"apply"}, "metadata.annotations[berth.dev/definition-hash]"},
		"a class":                  {className, setSpec("example.com/gpu", "extendedResourceName"), []string{"apply"}, "spec.extendedResourceName"},
		"the selectors of a class": {className, setSpec([]any{}, "selectors"), []string{"apply"}, "spec.selectors"},
		"configuration of a class": {className, setSpec([]any{map[string]any{"opaque": map[string]any{"driver": "example.com", "parameters": map[string]any{"a": "b"}}}}, "config"), []string{"apply", "update"}, "spec.config"},
		"a class without its labels": {className, func(o *unstructured.Unstructured) {
			o.SetLabels(nil)
			setSpec("example.com/gpu", "extendedResourceName")(o)
		}, []string{"apply"}, "metadata.labels"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, kinds()[tc.name])
			w.must(request{name: tc.name})
			w.writes = nil
			w.edit(tc.name, "kubectl-edit", tc.edit)
			w.must(request{name: tc.name})
			w.checkEqual(tc.name)
			var want []string
			for _, verb := range tc.writes {
				want = append(want, verb+" "+tc.name)
			}
			if diff := cmp.Diff(want, w.writes); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			w.checkLog("Undid an edit")
			w.checkEvent("Warning EditUndone", tc.field)
			w.writes = nil
			w.must(request{name: tc.name})
			if len(w.writes) > 0 {
				t.Errorf("then it writes %v", w.writes)
			}
		})
	}
}

// TestForeignLabelsStay: labels and annotations that others add, such as those of a GitOps tool, are no difference and stay.
func TestForeignLabelsStay(t *testing.T) {
	for name, k := range kinds() {
		t.Run(k.Kind, func(t *testing.T) {
			w := newWorld(t, k)
			w.must(request{name: name})
			w.edit(name, "argocd", func(o *unstructured.Unstructured) {
				o.SetLabels(merged(o.GetLabels(), map[string]string{"team": "gpu"}))
				o.SetAnnotations(merged(o.GetAnnotations(), map[string]string{"tracking": "1"}))
			})
			w.writes = nil
			w.must(request{name: name})
			if len(w.writes) > 0 {
				t.Errorf("it writes %v", w.writes)
			}
			w.edit(name, "kubectl-edit", setSpec(map[string]any{}))
			w.must(request{name: name})
			w.checkEqual(name)
			if live := w.read(name); live.GetLabels()["team"] != "gpu" || live.GetAnnotations()["tracking"] != "1" {
				t.Errorf("labels %v, annotations %v: those of others are gone", live.GetLabels(), live.GetAnnotations())
			}
		})
	}
}

// TestDeletedReturns: an object that the watch reports as deleted is created again, with an Event; one that is about to be deleted waits.
func TestDeletedReturns(t *testing.T) {
	for name, k := range kinds() {
		t.Run(k.Kind, func(t *testing.T) {
			w := newWorld(t, k)
			w.must(request{name: name})
			w.edit(name, "kubectl", func(o *unstructured.Unstructured) {
				o.SetFinalizers([]string{"example.com/wait"})
				setSpec(map[string]any{})(o)
			})
			if err := w.api.Delete(t.Context(), w.read(name)); err != nil {
				t.Fatal(err)
			}
			w.writes = nil
			w.must(request{name: name})
			if len(w.writes) > 0 {
				t.Errorf("while it is being deleted it writes %v", w.writes)
			}
			w.edit(name, "kubectl", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
			w.must(request{name: name})
			w.checkEqual(name)
			w.checkLog("Created again what was deleted")
			w.checkEvent("Warning DeletionUndone")
		})
	}
}

// TestOlderIsUpgraded: a definition of an earlier Berth, whoever wrote it, without an Event.
func TestOlderIsUpgraded(t *testing.T) {
	older := func(o *unstructured.Unstructured) {
		setVersion("1")(o)
		setSpec([]any{}, "names", "shortNames")(o)
	}
	tests := map[string]struct {
		manager string
		change  func(*unstructured.Unstructured)
		log     string
	}{
		"applied by hand": {"kubectl-client-side-apply", older, "Took over"},
		"by an operator": {FieldManager, func(o *unstructured.Unstructured) {
			older(o)
			o.SetAnnotations(merged(o.GetAnnotations(), map[string]string{hashAnnotation: "0123"}))
		}, "Updated"},
		"without a version": {"kubectl", func(o *unstructured.Unstructured) { o.SetAnnotations(nil) }, "Took over"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, definitionKind())
			w.add(crdName, tc.manager, tc.change)
			w.must(request{name: crdName})
			w.checkEqual(crdName)
			w.checkLog(tc.log)
			w.checkEvent()
		})
	}
}

// TestNewerStops: a newer definition is not written, in no state, and the operator ends.
func TestNewerStops(t *testing.T) {
	tests := map[string]func(*world){
		"at the start": func(w *world) { w.add(crdName, "berth-operator", setVersion("1000")) },
		"later": func(w *world) {
			w.must(request{name: crdName})
			w.writes = nil
			w.edit(crdName, "berth-operator", setVersion("1000"))
		},
		"of others, and edited": func(w *world) {
			w.add(crdName, "kubectl", func(o *unstructured.Unstructured) {
				setVersion("1000")(o)
				setSpec("Namespaced", "scope")(o)
			})
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, definitionKind())
			prepare(w)
			before := w.read(crdName)
			w.must(request{name: crdName})
			if diff := cmp.Diff(before, w.read(crdName)); diff != "" || len(w.writes) > 0 {
				t.Errorf("it wrote %v:\n%s", w.writes, diff)
			}
			for name, err := range map[string]error{"stopped with": w.stopped, "Check returned": Check(t.Context(), w.client)} {
				refused, ok := errors.AsType[*NewerError](err)
				if !ok || refused.Name != crdName || refused.Cluster != 1000 || refused.Embedded < 4 {
					t.Fatalf("%s %v, want a NewerError with the versions", name, err)
				}
				for _, want := range []string{crdName, "version 1000", "helm rollback", "kubectl delete customresourcedefinition gpunodes.berth.dev"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s %q, want %q in it", name, err, want)
					}
				}
			}
		})
	}
}

// TestCheck: what is absent, older or equal is no reason to refuse.
func TestCheck(t *testing.T) {
	tests := map[string]func(*world){
		"absent": func(*world) {},
		"older":  func(w *world) { w.add(crdName, "kubectl", setVersion("1")) },
		"equal":  func(w *world) { w.must(request{name: crdName}) },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, definitionKind())
			prepare(w)
			w.writes = nil
			if err := Check(t.Context(), w.client); err != nil || len(w.writes) > 0 {
				t.Errorf("Check: %v, writes %v; want none", err, w.writes)
			}
		})
	}
	w := newWorld(t, definitionKind())
	w.fail = func(string) error { return forbidden() }
	if err := Check(t.Context(), w.client); err == nil || !strings.Contains(err.Error(), "service account this verb on customresourcedefinitions") {
		t.Errorf("Check without the right: %v, want an error with the right", err)
	}
}

// TestForeignClass: a class that Berth did not make is taken over when its spec is the wanted one, and else left alone.
func TestForeignClass(t *testing.T) {
	other := setSpec("example.com/gpu", "extendedResourceName")
	labelled := func(o *unstructured.Unstructured) {
		other(o)
		o.SetLabels(map[string]string{partOf: "berth"})
	}
	tests := map[string]struct {
		manager string
		change  func(*unstructured.Unstructured)
		taken   bool
	}{
		"equal, by kubectl":         {"kubectl", unchanged, true},
		"another, by kubectl":       {"kubectl", other, false},
		"another, of Berth's label": {"kubectl", labelled, true},
		"another, by the sandbox":   {"berth-sandbox", other, true},
		"another, by the operator":  {FieldManager, other, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, classKind())
			w.add(className, tc.manager, tc.change)
			before := w.read(className)
			result := w.must(request{name: className})
			if tc.taken {
				w.checkEqual(className)
				if result.RequeueAfter != 0 {
					t.Errorf("again after %v, want no wait", result.RequeueAfter)
				}
				return
			}
			if diff := cmp.Diff(before, w.read(className)); diff != "" || len(w.writes) > 0 {
				t.Errorf("it wrote %v:\n%s", w.writes, diff)
			}
			if result.RequeueAfter != time.Minute {
				t.Errorf("again after %v, want a minute", result.RequeueAfter)
			}
			w.checkEvent("Warning NameTaken", "spec.extendedResourceName", "last written by kubectl", "delete it")
			w.checkLog("Left a DeviceClass of somebody else alone")
			// The same version is reported once, and the name is Berth's when it is free.
			w.must(request{name: className})
			w.checkEvent()
			if err := w.api.Delete(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			w.must(request{name: className})
			w.checkEqual(className)
		})
	}
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, crdName, errors.New("no rule"))
}

// TestErrorsAreReturned: the queue tries again, and a refusal says which right is missing.
func TestErrorsAreReturned(t *testing.T) {
	tests := map[string]struct {
		verb string
		err  error
		want []string
	}{
		"a read that is forbidden": {"get", forbidden(), []string{"read CustomResourceDefinition " + crdName, "service account this verb on customresourcedefinitions.apiextensions.k8s.io"}},
		"a write that is forbidden": {"apply", forbidden(), []string{"create CustomResourceDefinition " + crdName,
			"service account this verb on customresourcedefinitions.apiextensions.k8s.io"}},
		"a conflict":    {"apply", apierrors.NewConflict(schema.GroupResource{Resource: "customresourcedefinitions"}, crdName, errors.New("modified")), []string{"create CustomResourceDefinition"}},
		"no API server": {"get", errors.New("connection refused"), []string{"connection refused"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, definitionKind())
			w.fail = func(verb string) error {
				if verb == tc.verb {
					return tc.err
				}
				return nil
			}
			_, err := w.reconcile(request{name: crdName})
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v, so that the queue tries again", err, tc.err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
			w.checkEvent()
			w.fail = func(string) error { return nil }
			w.must(request{name: crdName})
			w.checkEqual(crdName)
		})
	}
}

// TestInterrupted: a request that the end of the operator interrupts is no error.
func TestInterrupted(t *testing.T) {
	w := newWorld(t, definitionKind())
	ctx, cancel := context.WithCancel(t.Context())
	w.fail = func(string) error {
		cancel()
		return ctx.Err()
	}
	if _, err := w.Reconcile(ctx, request{name: crdName}); err != nil {
		t.Errorf("error %v, want none", err)
	}
}

// TestInvalidIsReplaced: where the fields of others contradict the wanted ones, the API server refuses to apply, and the spec is replaced.
func TestInvalidIsReplaced(t *testing.T) {
	w := newWorld(t, definitionKind())
	w.must(request{name: crdName})
	w.edit(crdName, "kubectl-edit", setSpec(map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []any{"v1"}}}, "conversion"))
	w.fail = func(verb string) error {
		if verb == "apply" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "CustomResourceDefinition"}, crdName, field.ErrorList{field.Forbidden(field.NewPath("spec", "conversion"), "")})
		}
		return nil
	}
	w.must(request{name: crdName})
	w.checkEqual(crdName)
	w.checkEvent("EditUndone", "spec.conversion")
}

// TestWriteOnTheVersionRead: what changed after the read is not overwritten; a newer definition may have come.
func TestWriteOnTheVersionRead(t *testing.T) {
	w := newWorld(t, definitionKind())
	w.must(request{name: crdName})
	w.edit(crdName, "kubectl-edit", setSpec("Namespaced", "scope"))
	w.fail = func(verb string) error {
		if verb == "apply" {
			w.edit(crdName, "berth-operator", setVersion("1000"))
		}
		return nil
	}
	if _, err := w.reconcile(request{name: crdName}); !apierrors.IsConflict(err) {
		t.Fatalf("error %v, want a conflict", err)
	}
	if got := w.read(crdName).GetAnnotations()["berth.dev/schema-version"]; got != "1000" {
		t.Errorf("the newer definition was overwritten: version %s", got)
	}
}

// TestKeptByTheServer: an API server that keeps other values causes an error, not a silent loop.
func TestKeptByTheServer(t *testing.T) {
	w := newWorld(t, classKind())
	w.must(request{name: className})
	w.edit(className, "webhook", setSpec("example.com/gpu", "extendedResourceName"))
	w.reconciler.client = &stubborn{w.client}
	if _, err := w.reconcile(request{name: className}); err == nil || !strings.Contains(err.Error(), "keeps other values of spec.extendedResourceName") {
		t.Errorf("error %v, want one with the field", err)
	}
	w.checkEvent()
}

// TestDroppedField: an optional field that the API server drops is written once an hour, and is no edit of others; when the API server has
// it, it is written. Any other field is an error, after one write.
func TestDroppedField(t *testing.T) {
	w := newWorld(t, classKind())
	w.drop = []string{"spec", "extendedResourceName"}
	for range 3 {
		w.must(request{name: className})
	}
	if len(w.writes) != 1 || len(w.objects.Absent()) != 1 {
		t.Errorf("it wrote %v; absent are %v", w.writes, w.objects.Absent())
	}
	w.checkEvent()
	w.now.Step(time.Hour - time.Minute)
	if again := w.must(request{name: className}).RequeueAfter; again != time.Minute || len(w.writes) != 1 {
		t.Errorf("again after %v, writes %v", again, w.writes)
	}
	w.now.Step(time.Minute)
	if again := w.must(request{name: className}).RequeueAfter; again != time.Hour || len(w.writes) != 2 {
		t.Errorf("again after %v, writes %v", again, w.writes)
	}
	// An edit is undone without the field.
	w.edit(className, "kubectl-edit", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
	w.must(request{name: className})
	w.checkEvent("EditUndone", "metadata.labels")
	// The gate is switched on.
	w.drop = nil
	w.now.Step(time.Hour)
	w.must(request{name: className})
	w.checkEqual(className)
	w.checkEvent()
	w.checkLog("Wrote a field that the API server dropped before")
	if len(w.objects.Absent()) > 0 {
		t.Errorf("absent are %v", w.objects.Absent())
	}

	w = newWorld(t, classKind())
	w.drop = []string{"spec", "selectors"}
	if _, err := w.reconcile(request{name: className}); err == nil || !strings.Contains(err.Error(), "spec.selectors") || len(w.writes) != 1 {
		t.Errorf("error %v, writes %v", err, w.writes)
	}
}

// TestUnknownName: other objects that carry Berth's label are of no concern.
func TestUnknownName(t *testing.T) {
	w := newWorld(t, classKind())
	w.fail = func(verb string) error { return errors.New(verb) }
	w.must(request{name: "other"})
}

// TestDiffering: values, keys and items of lists.
func TestDiffering(t *testing.T) {
	type object = map[string]any
	tests := map[string]struct {
		live   any
		want   any
		fields []difference
	}{
		"equal":                {object{"a": []any{int64(1), "x"}}, object{"a": []any{int64(1), "x"}}, nil},
		"values":               {object{"a": int64(1), "b": "x"}, object{"a": int64(2), "b": "y"}, []difference{{"spec.a", false}, {"spec.b", false}}},
		"a key less":           {object{}, object{"a": object{"b": true}}, []difference{{"spec.a", true}}},
		"a key more":           {object{"a": object{"b": true, "c": true}}, object{"a": object{"b": true}}, []difference{{"spec.a.c", false}}},
		"an item":              {object{"a": []any{"x", object{"b": 1.5}}}, object{"a": []any{"x", object{"b": 2.5}}}, []difference{{"spec.a[1].b", false}}},
		"an item more":         {object{"a": []any{"x", "y"}}, object{"a": []any{"x"}}, []difference{{"spec.a", false}}},
		"an item less":         {object{"a": []any{"x"}}, object{"a": []any{"x", "y"}}, []difference{{"spec.a", false}}},
		"another type":         {object{"a": "x"}, object{"a": []any{"x"}}, []difference{{"spec.a", false}}},
		"no map where one was": {nil, object{"a": "x"}, []difference{{"spec", true}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.fields, differing("spec", tc.live, tc.want), cmp.AllowUnexported(difference{})); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLastWriter: an Event names who wrote last, unless the operator did; the status and entries without a time do not count.
func TestLastWriter(t *testing.T) {
	entry := func(manager string, seconds int64) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &metav1.Time{Time: time.Unix(seconds, 0)}}
	}
	status := entry("status", 9)
	status.Subresource = "status"
	tests := map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		"none":                {nil, ""},
		"several":             {[]metav1.ManagedFieldsEntry{entry("first", 1), entry("last", 3), entry("middle", 2)}, "last"},
		"status, no time":     {[]metav1.ManagedFieldsEntry{entry("first", 1), status, {Manager: "timeless"}}, "first"},
		"before the operator": {[]metav1.ManagedFieldsEntry{entry("first", 1), entry(FieldManager, 2)}, ""},
		"after the operator":  {[]metav1.ManagedFieldsEntry{entry(FieldManager, 1), entry("last", 2)}, "last"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			live := &unstructured.Unstructured{}
			live.SetManagedFields(tc.entries)
			if got := lastWriter(live); got != tc.want {
				t.Errorf("lastWriter = %q, want %q", got, tc.want)
			}
		})
	}
}

var _ client.Client = &stubborn{}
