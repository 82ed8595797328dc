package placement

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
)

// sink notes what it gets.
type sink struct {
	mu  sync.Mutex
	got []string
}

func (s *sink) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, fmt.Sprintf(format, args...))
}

func (s *sink) SetHardware(h *fleetview.Hardware) {
	s.note("set %s, in part: %v", h.Node, h.Note != "")
}
func (s *sink) DropHardware(node string) { s.note("drop %s", node) }

// gpuNode returns a GPUNode; status replaces its status.
func gpuNode(name string, status any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "berth.dev/v1alpha1", "kind": "GPUNode", "metadata": map[string]any{"name": name}, "status": status,
	}}
}

// TestFollower: the model gets what each GPUNode says; one that cannot be read costs its own node, and a cluster without them is none.
func TestFollower(t *testing.T) {
	resource := schema.GroupResource{Group: "berth.dev", Resource: "gpunodes"}
	tests := map[string]struct {
		objects []runtime.Object
		fails   error
		then    func(ctx context.Context, client *fake.FakeDynamicClient)
		waited  bool
		want    []string
		log     string // what the log has once
	}{
		"a node": {
			objects: []runtime.Object{gpuNode("a", map[string]any{})},
			waited:  true, want: []string{"set a, in part: false"},
		},
		"one that cannot be read": {
			objects: []runtime.Object{gpuNode("a", "none"), gpuNode("b", map[string]any{})},
			waited:  true, want: []string{"set a, in part: true", "set b, in part: false"}, log: "a GPUNode can only be used in part",
		},
		"a deleted one": {
			objects: []runtime.Object{gpuNode("a", map[string]any{})},
			then: func(ctx context.Context, client *fake.FakeDynamicClient) {
				_ = client.Resource(v1alpha1.GPUNodes()).Delete(ctx, "a", metav1.DeleteOptions{})
			},
			waited: true, want: []string{"drop a", "set a, in part: false"},
		},
		"not served":    {fails: apierrors.NewNotFound(resource, ""), waited: true, log: "the API server does not serve GPUNodes"},
		"not permitted": {fails: apierrors.NewForbidden(resource, "", nil), log: "cannot follow GPUNodes"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
					map[schema.GroupVersionResource]string{v1alpha1.GPUNodes(): "GPUNodeList"}, test.objects...)
				if test.fails != nil {
					client.PrependReactor("list", "gpunodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.fails })
				}
				var s sink
				var log bytes.Buffer
				f, err := newFollower(client, &s, slog.New(slog.NewTextHandler(&log, nil)))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); f.run(ctx) }()
				if got := f.wait(ctx, 5*time.Second); got != test.waited {
					t.Errorf("wait returns %v; want %v", got, test.waited)
				}
				synctest.Wait()
				if test.then != nil {
					test.then(ctx, client)
					synctest.Wait()
				}
				cancel()
				<-done
				slices.Sort(s.got)
				if !slices.Equal(s.got, test.want) {
					t.Errorf("got %q; want %q", s.got, test.want)
				}
				if count := strings.Count(log.String(), "level=WARN"); test.log == "" && count > 0 || test.log != "" && (count != 1 || !strings.Contains(log.String(), test.log)) {
					t.Errorf("the log has %q; want %q once", log.String(), test.log)
				}
			})
		})
	}
}
