// Package fakeapi is an API server in memory for tests of code that writes Node, GPUNode, NodeFeature and Event
// objects.
//
// It guarantees what the fake of client-go leaves out: server-side apply with managed fields, conditions of a Node that
// are merged by type, a resourceVersion that changes with the content, a conflict for a write with another one, and the
// response to a JSON patch that does not apply. It records every request. A test can make requests fail or hang with
// Intercept. Only tests may import it.
package fakeapi

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// NodeName is the name of the Node that a new API server has.
const NodeName = "node-0"

// kinds are the resources that the server supports.
var kinds = map[schema.GroupVersion][]string{
	{Version: "v1"}: {"Node", "Pod", "ConfigMap"},
	{Group: "berth.dev", Version: "v1alpha1"}:       {"GPUNode"},
	{Group: "nfd.k8s-sigs.io", Version: "v1alpha1"}: {"NodeFeature"},
	{Group: "events.k8s.io", Version: "v1"}:         {"Event"},
	{Group: "apiextensions.k8s.io", Version: "v1"}:  {"CustomResourceDefinition"},
}

// Server is the API server.
type Server struct {
	*fake.FakeDynamicClient
	t       testing.TB
	tracker clienttesting.ObjectTracker
	react   clienttesting.ReactionFunc

	mu        sync.Mutex
	intercept func(Request) error
	// applied are the types of conditions that each field manager has applied.
	applied map[string][]string
}

// New returns a server with one Node.
func New(t testing.TB) *Server {
	t.Helper()
	scheme := runtime.NewScheme()
	for gv, names := range kinds {
		for _, name := range names {
			scheme.AddKnownTypeWithName(gv.WithKind(name), &unstructured.Unstructured{})
			scheme.AddKnownTypeWithName(gv.WithKind(name+"List"), &unstructured.UnstructuredList{})
		}
		metav1.AddToGroupVersion(scheme, gv)
	}
	tracker := clienttesting.NewFieldManagedObjectTracker(scheme, unstructured.UnstructuredJSONScheme, managedfields.NewDeducedTypeConverter())
	s := &Server{
		FakeDynamicClient: fake.NewSimpleDynamicClient(scheme), t: t,
		tracker: tracker, react: clienttesting.ObjectReaction(tracker), applied: map[string][]string{},
	}
	s.PrependReactor("*", "*", s.handle)
	s.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		stream, err := tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, stream, err
	})
	s.AddNode("uid-1")
	return s
}

// Nodes is the resource of the Nodes.
func (s *Server) Nodes() dynamic.ResourceInterface {
	return s.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
}

// AddNode creates the Node, with a label and a taint of other programs.
func (s *Server) AddNode(uid types.UID) {
	s.t.Helper()
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": NodeName, "uid": string(uid), "labels": map[string]any{"zone": "a"}},
		"spec":     map[string]any{"taints": []any{map[string]any{"key": "example.com/other", "effect": "NoSchedule"}}},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}}
	if _, err := s.Nodes().Create(s.t.Context(), node, metav1.CreateOptions{FieldManager: "kubelet"}); err != nil {
		s.t.Fatal(err)
	}
}

// ReplaceNode deletes the Node and creates another one of the same name.
func (s *Server) ReplaceNode(uid types.UID) {
	s.t.Helper()
	if err := s.Nodes().Delete(s.t.Context(), NodeName, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.applied = map[string][]string{}
	s.mu.Unlock()
	s.AddNode(uid)
}

// Node reads the Node.
func (s *Server) Node() *unstructured.Unstructured {
	s.t.Helper()
	node, err := s.Nodes().Get(s.t.Context(), NodeName, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return node
}

// Edit changes the Node as a user does, with a merge patch.
func (s *Server) Edit(patch string) {
	s.t.Helper()
	if _, err := s.Nodes().Patch(s.t.Context(), NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		s.t.Fatal(err)
	}
}

// Intercept makes f see each request before the server does. An error of f is the response. f may block, and may make
// requests of its own; nil ends the interception.
func (s *Server) Intercept(f func(Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Writes counts the requests since the last ClearActions that change a resource, also those that were refused; an empty
// resource means all.
func (s *Server) Writes(resource string) int {
	count := 0
	for _, action := range s.Actions() {
		reads := []string{"get", "list", "watch"}
		if !slices.Contains(reads, action.GetVerb()) && (resource == "" || action.GetResource().Resource == resource) {
			count++
		}
	}
	return count
}

func (s *Server) handle(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkVersion(action); err != nil {
		return true, nil, err
	}
	patch, ok := action.(clienttesting.PatchActionImpl)
	var object runtime.Object
	var err error
	if ok && patch.GetPatchType() == types.ApplyPatchType && patch.GetSubresource() == "status" {
		object, err = s.applyStatus(patch)
	} else {
		_, object, err = s.react(action)
	}
	if ok && err != nil && patch.GetPatchType() == types.JSONPatchType && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		err = apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	if one, ok := object.(*unstructured.Unstructured); ok && err == nil {
		one = one.DeepCopy()
		one.SetResourceVersion(version(one))
		object = one
	}
	return true, object, err
}

// version depends on the content of an object alone.
func version(object *unstructured.Unstructured) string {
	bare := object.DeepCopy()
	bare.SetResourceVersion("")
	text, err := bare.MarshalJSON()
	if err != nil {
		return "0"
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text)
	return fmt.Sprint(hash.Sum32())
}

// checkVersion refuses an update and a patch of another version of the object.
func (s *Server) checkVersion(action clienttesting.Action) error {
	name, wanted := "", ""
	switch action := action.(type) {
	case clienttesting.UpdateActionImpl:
		if object, ok := action.GetObject().(*unstructured.Unstructured); ok {
			name, wanted = object.GetName(), object.GetResourceVersion()
		}
	case clienttesting.PatchActionImpl:
		var body struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		if json.Unmarshal(action.GetPatch(), &body) == nil {
			name, wanted = action.GetName(), body.Metadata.ResourceVersion
		}
	}
	if wanted == "" {
		return nil
	}
	current, err := s.tracker.Get(action.GetResource(), action.GetNamespace(), name)
	if err != nil {
		return err
	}
	if version(current.(*unstructured.Unstructured)) != wanted {
		return apierrors.NewConflict(action.GetResource().GroupResource(), name, fmt.Errorf("the object has been modified"))
	}
	return nil
}

// applyStatus merges the conditions of a Node by type, as its schema says, and removes those that the field manager
// applied before and does not apply now.
func (s *Server) applyStatus(patch clienttesting.PatchActionImpl) (runtime.Object, error) {
	wanted := &unstructured.Unstructured{}
	if err := wanted.UnmarshalJSON(patch.GetPatch()); err != nil {
		return nil, err
	}
	object, err := s.tracker.Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	if err != nil {
		return nil, err
	}
	current := object.(*unstructured.Unstructured)
	added, _, err := unstructured.NestedSlice(wanted.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	manager := patch.PatchOptions.FieldManager
	old := s.applied[manager]
	s.applied[manager] = nil
	for _, one := range added {
		s.applied[manager] = append(s.applied[manager], typeOf(one))
	}
	all, _, err := unstructured.NestedSlice(current.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(one any) bool {
		return slices.Contains(old, typeOf(one)) || slices.Contains(s.applied[manager], typeOf(one))
	})
	if err := unstructured.SetNestedSlice(current.Object, append(all, added...), "status", "conditions"); err != nil {
		return nil, err
	}
	return current, s.tracker.Update(patch.GetResource(), current, patch.GetNamespace(), metav1.UpdateOptions{FieldManager: manager})
}

func typeOf(condition any) string {
	fields, _ := condition.(map[string]any)
	name, _ := fields["type"].(string)
	return name
}
