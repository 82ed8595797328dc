package publish

import (
	"context"
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestRemove(t *testing.T) {
	slice := func(name, driver, node string) runtime.Object {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: new(node)}}
	}
	refused := apierrors.NewForbidden(resourceapi.Resource("resourceslices"), "", errors.New("no rights"))
	tests := map[string]struct {
		verb string
		err  error
		left int
		fail bool
	}{
		"all of the driver and node": {left: 2},
		"no rights":                  {verb: "list", err: refused, left: 4},
		"no API":                     {verb: "list", err: apierrors.NewNotFound(resourceapi.Resource("resourceslices"), ""), left: 4},
		"no API server":              {verb: "list", err: errors.New("503"), left: 4, fail: true},
		"one that is gone":           {verb: "delete", err: apierrors.NewNotFound(resourceapi.Resource("resourceslices"), "a"), left: 4},
		"a refused deletion":         {verb: "delete", err: refused, left: 4, fail: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(slice("a", "gpu.berth.dev", "node-a"), slice("b", "gpu.berth.dev", "node-a"),
				slice("c", "gpu.berth.dev", "node-b"), slice("d", "nic.example.com", "node-a"))
			chain := client.ReactionChain
			if test.err != nil {
				client.PrependReactor(test.verb, "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
			}
			if err := Remove(t.Context(), client, "gpu.berth.dev", "node-a"); (err != nil) != test.fail {
				t.Errorf("got %v", err)
			}
			client.ReactionChain = chain
			list, err := client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
			if err != nil || len(list.Items) != test.left {
				t.Errorf("%d slices are left (%v), want %d", len(list.Items), err, test.left)
			}
		})
	}
}
