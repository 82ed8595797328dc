package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestNotKept: an object that cannot be brought to what is wanted costs a few writes and one line of the log, and the condition of the
// GPUStack names it. A field that the API server drops, as one does whose feature gate is off, is absent, and no problem.
func TestNotKept(t *testing.T) {
	const classes = "/apis/resource.k8s.io/v1/deviceclasses/"
	tests := map[string]struct {
		prepare func(*fakeAPI)
		// status, reason and message are the condition's.
		status  string
		reason  string
		message string
		// writes is how often the class may be written, and line the line of the log about it.
		writes int
		line   string
	}{
		"a field is dropped": {func(a *fakeAPI) {
			a.admit = func(path string, o *unstructured.Unstructured) *apierrors.StatusError {
				if strings.HasPrefix(path, classes) {
					unstructured.RemoveNestedField(o.Object, "spec", "extendedResourceName")
				}
				return nil
			}
		}, "True", "Reconciled", "feature gate DRAExtendedResource is off: GPUs that are allocated through DRA are for claims only (85 objects, such as DeviceClass gpu.berth.dev)", 1,
			"The API server drops a field"},
		"it is refused": {func(a *fakeAPI) {
			a.admit = func(path string, _ *unstructured.Unstructured) *apierrors.StatusError {
				if path == classPath {
					return apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}, "gpu.berth.dev", errors.New("by a webhook"))
				}
				return nil
			}
		}, "False", "ObjectsNotKept", "DeviceClass gpu.berth.dev: create DeviceClass gpu.berth.dev: ", 8, "Cannot bring an object in line"},
		"others edit it back": {func(a *fakeAPI) {
			a.written = func(path string) {
				if path == classPath {
					edited := a.objects[path].DeepCopy()
					edited.Object["spec"] = map[string]any{"extendedResourceName": "example.com/gpu"}
					a.put(path, edited)
				}
			}
		}, "False", "ObjectsNotKept", "DeviceClass gpu.berth.dev: others change it again and again: spec.", 8, "Others edit an object again and again"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newFakeAPI(t)
			tc.prepare(api)
			api.put("/api/v1/namespaces/berth-system/configmaps/berth-stack", stackConfig())
			s := start(t, api)
			ready := func() (found bool) {
				stack := api.objects[stackPath]
				if stack == nil {
					return false
				}
				conditions, _, _ := unstructured.NestedSlice(stack.Object, "status", "conditions")
				for _, c := range conditions {
					c := c.(map[string]any)
					found = c["status"] == tc.status && c["reason"] == tc.reason && strings.Contains(fmt.Sprint(c["message"]), tc.message)
				}
				return found
			}
			api.wait("the condition", ready)
			writes := func() int {
				return api.calls["patch deviceclasses gpu.berth.dev"] + api.calls["update deviceclasses gpu.berth.dev"]
			}
			api.mu.Lock()
			before, reads := writes(), api.calls["get deviceclasses gpu.berth.dev"]
			if api.objects[classPath] != nil {
				// What wakes the controller makes no attempt earlier.
				other := api.objects[classPath].DeepCopy()
				other.SetLabels(map[string]string{"app.kubernetes.io/part-of": "berth", "app.kubernetes.io/managed-by": "berth-operator", "team": "a"})
				api.put(classPath, other)
			}
			api.mu.Unlock()
			if before > tc.writes {
				t.Errorf("%d writes, want at most %d", before, tc.writes)
			}
			if tc.status == "True" {
				api.wait("it is read again", func() bool { return api.calls["get deviceclasses gpu.berth.dev"] > reads })
			}
			if err := s.end(); err != nil {
				t.Error(err)
			}
			if after := api.requested()["patch deviceclasses gpu.berth.dev"]; after > tc.writes {
				t.Errorf("%d writes when woken, want at most %d", after, tc.writes)
			}
			if n := strings.Count(s.log.String(), tc.line); n != 1 {
				t.Errorf("%d lines %q, want one", n, tc.line)
			}
		})
	}
}
