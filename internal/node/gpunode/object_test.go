package gpunode

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// publishing runs body beside the publisher of a GPUNode, in a bubble with its own time.
func publishing(t *testing.T, body func(*testing.T, *fakeapi.Server, *nodeapi.Publisher[*v1alpha1.GPUNode], func() error)) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(t)
		object := NewObject(api, fakeapi.NodeName)
		var last atomic.Pointer[error]
		publisher := nodeapi.NewPublisher(nodeapi.PublisherDeps[*v1alpha1.GPUNode]{
			Read: object.Read, Write: object.Write, Equal: Equal, Report: func(err error) { last.Store(&err) },
			Retry: nodeapi.Retry{Clock: clock.RealClock{}, NodeName: fakeapi.NodeName},
		})
		go publisher.Run(t.Context())
		synctest.Wait()
		body(t, api, publisher, func() error { return *last.Load() })
	})
}

func object(gpus int) *v1alpha1.GPUNode {
	s := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "1"}}}}
	for i := range gpus {
		s.GPUs = append(s.GPUs, testGPU(i))
	}
	return Build("node-0", Input{Snapshot: s})
}

// stored is the GPUNode of the server.
func stored(t *testing.T, api *fakeapi.Server) *v1alpha1.GPUNode {
	t.Helper()
	got, err := api.Resource(v1alpha1.GPUNodes()).Get(t.Context(), fakeapi.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := Decode(got)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// TestObjectIsWrittenAgain checks that a change by another client is reverted by one write.
func TestObjectIsWrittenAgain(t *testing.T) {
	tests := map[string]struct {
		harm  func(*testing.T, *fakeapi.Server)
		owner types.UID
	}{
		"nothing": {func(*testing.T, *fakeapi.Server) {}, "uid-1"},
		"deleted": {func(t *testing.T, api *fakeapi.Server) {
			if err := api.Resource(v1alpha1.GPUNodes()).Delete(t.Context(), fakeapi.NodeName, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "uid-1"},
		"edited by hand": {func(t *testing.T, api *fakeapi.Server) {
			patch := []byte(`{"status":{"devices":[]}}`)
			if _, err := api.Resource(v1alpha1.GPUNodes()).Patch(t.Context(), fakeapi.NodeName, types.MergePatchType,
				patch, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
				t.Fatal(err)
			}
		}, "uid-1"},
		"another Node": {func(_ *testing.T, api *fakeapi.Server) { api.ReplaceNode("uid-2") }, "uid-2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			publishing(t, func(t *testing.T, api *fakeapi.Server, p *nodeapi.Publisher[*v1alpha1.GPUNode], _ func() error) {
				p.Publish(object(2))
				time.Sleep(2 * time.Second)
				tc.harm(t, api)
				api.ClearActions()
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				want := 1
				if name == "nothing" {
					want = 0
				}
				if got := api.Writes(""); got != want {
					t.Errorf("%d writes, want %d", got, want)
				}
				ignored := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields", "ResourceVersion")
				if diff := cmp.Diff(owned(object(2), fakeapi.NodeName, tc.owner), stored(t, api), ignored); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestObjectErrors checks that an error names the object and, if known, the fix, and that the write is retried.
func TestObjectErrors(t *testing.T) {
	forbidden := apierrors.NewForbidden(v1alpha1.GPUNodes().GroupResource(), fakeapi.NodeName, errors.New("no role"))
	tests := map[string]struct {
		verb     string
		resource string
		answer   error
		want     string
	}{
		"forbidden": {"apply", "gpunodes", forbidden, "fix: bind the agent's service account"},
		"away":      {"apply", "gpunodes", errors.New("no route"), "write GPUNode node-0: no route"},
		"no Node":   {"get", "nodes", errors.New("no route"), "read Node node-0 for the owner reference: no route"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			publishing(t, func(t *testing.T, api *fakeapi.Server, p *nodeapi.Publisher[*v1alpha1.GPUNode], last func() error) {
				api.ReplaceNode("uid-2") // The UID is read again only after a failure or at a resync.
				api.Intercept(func(request fakeapi.Request) error {
					if request.Verb == tc.verb && request.Resource == tc.resource {
						return tc.answer
					}
					return nil
				})
				p.Publish(object(1))
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				if tc.verb == "get" {
					p.Publish(object(2))
					time.Sleep(time.Minute)
				} else if err := last(); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, tc.answer) {
					t.Errorf("reported %v, want %q", err, tc.want)
				}
				api.Intercept(nil)
				time.Sleep(12 * time.Minute)
				synctest.Wait()
				if err := last(); err != nil {
					t.Errorf("after the repair: %v", err)
				}
				if owner := stored(t, api).OwnerReferences[0]; owner.Kind != "Node" || owner.UID != "uid-2" || owner.Name != fakeapi.NodeName {
					t.Errorf("owner %+v", owner)
				}
			})
		})
	}
	t.Run("read", func(t *testing.T) {
		api := fakeapi.New(t)
		o := NewObject(api, fakeapi.NodeName)
		if _, found, err := o.Read(t.Context()); found || err != nil {
			t.Errorf("without an object: found %v, %v", found, err)
		}
		api.Intercept(func(request fakeapi.Request) error {
			if request.Resource == "gpunodes" {
				return forbidden
			}
			return nil
		})
		if _, _, err := o.Read(t.Context()); !errors.Is(err, forbidden) {
			t.Errorf("Read: %v", err)
		}
		api.Intercept(nil)
		broken := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "berth.dev/v1alpha1",
			"kind": "GPUNode", "metadata": map[string]any{"name": fakeapi.NodeName}, "status": "text"}}
		if _, err := api.Resource(v1alpha1.GPUNodes()).Create(t.Context(), broken, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := o.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "read GPUNode node-0") {
			t.Errorf("Read of an object of another form: %v", err)
		}
	})
}
