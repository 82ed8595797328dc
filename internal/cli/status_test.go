package cli

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func gateNode(name string, gate v1alpha1.GateStatus) *unstructured.Unstructured {
	node := &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode)}
	node.Name, node.Status.Gate = name, &gate
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: fields}
}

func statusClient(objects ...runtime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.GPUNodes(): "GPUNodeList", v1alpha1.GPUStacks(): "GPUStackList", v1alpha1.NodeOperations(): "NodeOperationList",
		podResource(): "PodList",
	}, objects...)
}

// TestStatusWaits checks that the command waits for a node to appear and to be validated, with one line of progress per change, and that
// failed reads do not end it.
func TestStatusWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := statusClient()
		var failing atomic.Bool
		client.PrependReactor("list", "gpunodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			if failing.Load() {
				return true, nil, apierrors.NewServiceUnavailable("the API server starts")
			}
			return false, nil, nil
		})
		go func() {
			time.Sleep(2500 * time.Millisecond)
			failing.Store(true)
			time.Sleep(time.Second)
			failing.Store(false)
			if err := client.Tracker().Add(gateNode("node-a", v1alpha1.GateStatus{State: v1alpha1.GateHeld, Message: "the pod is made"})); err != nil {
				t.Error(err)
			}
			time.Sleep(3 * time.Second)
			if err := client.Tracker().Update(v1alpha1.GPUNodes(), gateNode("node-a", v1alpha1.GateStatus{State: v1alpha1.GateValidated, By: v1alpha1.GateByPod}), ""); err != nil {
				t.Error(err)
			}
		}()
		var out strings.Builder
		w := statusWait{clock: clock.RealClock{}, out: &out, limit: time.Minute}
		w.read = func(ctx context.Context) (*v1alpha1.StatusReport, error) { return readStatus(ctx, client) }
		began := time.Now()
		report, err := w.await(t.Context())
		if err != nil || len(report.Nodes) != 1 || report.Nodes[0].By != "pod" {
			t.Fatalf("%+v, %v", report, err)
		}
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("it waited %s", took)
		}
		want := "waiting: no node has reported its GPUs\nwaiting: status: list gpunodes: the API server starts\nwaiting: node node-a is Held: the pod is made\n"
		if out.String() != want {
			t.Errorf("the progress is\n%swant\n%s", out.String(), want)
		}
	})
}

// TestStatusForbidden checks that what a user may not read is a note, but for the nodes.
func TestStatusForbidden(t *testing.T) {
	client := statusClient(gateNode("node-a", v1alpha1.GateStatus{State: v1alpha1.GateHeld}))
	for _, resource := range []string{"gpustacks", "nodeoperations"} {
		client.PrependReactor("list", resource, func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: resource}, "", nil)
		})
	}
	report, err := readStatus(t.Context(), client)
	if err != nil || len(report.Notes) != 2 || !strings.HasPrefix(report.Notes[0], "GPUStack: not shown, since this user may not read it") {
		t.Errorf("%+v, %v", report, err)
	}
	client.PrependReactor("list", "gpunodes", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "gpunodes"}, "", nil)
	})
	if _, err := readStatus(t.Context(), client); err == nil || !strings.Contains(err.Error(), "fix: ask for the right") {
		t.Errorf("without the right to read nodes: %v", err)
	}
}

// TestStatusTimeout checks that a node that was opened without a validation is shown as such.
func TestStatusTimeout(t *testing.T) {
	n := nodeReport(&v1alpha1.GPUNode{Status: v1alpha1.GPUNodeStatus{Gate: &v1alpha1.GateStatus{State: v1alpha1.GateValidated, By: v1alpha1.GateByTimeout}}})
	if got := waitsFor(&n, false); !strings.HasPrefix(got, "not validated: opened since no operator") {
		t.Errorf("it says %q", got)
	}
}
