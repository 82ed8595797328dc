package nodeapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// taintKeys returns the keys of the Node's taints, in order.
func taintKeys(w *writers) []string {
	taints, _, _ := unstructured.NestedSlice(w.Node().Object, "spec", "taints")
	var keys []string
	for _, one := range taints {
		key, _ := one.(map[string]any)["key"].(string)
		keys = append(keys, key)
	}
	return keys
}

// TestGateTaint follows the taint through a change of its key. Taints of other programs stay, also one with the effect NoExecute under the
// gate's key; that of an autoscaler under the key, with another value, goes with the gate's.
func TestGateTaint(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		gate := nodeapi.NewGateTaint(w, retry(), func(error) {}, nil)
		go gate.Run(t.Context())
		w.Edit(`{"spec":{"taints":[{"key":"example.com/other","effect":"NoSchedule"},{"key":"k","value":"autoscaler","effect":"NoSchedule"},{"key":"k","effect":"NoExecute"}]}}`)
		for i, step := range []struct {
			wanted nodeapi.GateTaint
			want   []string
		}{
			{nodeapi.GateTaint{Key: "k", Wanted: true}, []string{"example.com/other", "k", "k"}},
			{nodeapi.GateTaint{Key: "k"}, []string{"example.com/other", "k"}},
			{nodeapi.GateTaint{Key: "k", Wanted: true}, []string{"example.com/other", "k", "k"}},
			{nodeapi.GateTaint{Key: "k2", Wanted: true}, []string{"example.com/other", "k", "k2"}},
			{nodeapi.GateTaint{Key: "k2"}, []string{"example.com/other", "k"}},
		} {
			gate.Publish(step.wanted)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if diff := cmp.Diff(step.want, taintKeys(w)); diff != "" {
				t.Errorf("step %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

// TestRemoveGate removes the taint under any key and the condition, and leaves those of the health.
func TestRemoveGate(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		ready := nodeapi.NewNodeReady(w, retry(), func(error) {}, nil)
		gate := nodeapi.NewGateTaint(w, retry(), func(error) {}, nil)
		go ready.Run(t.Context())
		go gate.Run(t.Context())
		before := state(t, w.Server)
		ready.Publish(nodeapi.NodeCondition{Reason: "Held", Message: "m"})
		gate.Publish(nodeapi.GateTaint{Key: "former", Wanted: true})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if state(t, w.Server) == before {
			t.Fatal("nothing was written")
		}
		for range 2 {
			if err := nodeapi.RemoveGate(t.Context(), w, fakeapi.NodeName, "k"); err != nil {
				t.Fatal(err)
			}
			if got := state(t, w.Server); got != before {
				t.Errorf("the Node has\n%s, want\n%s", got, before)
			}
		}
		if err := nodeapi.RemoveGate(t.Context(), nil, fakeapi.NodeName, "k"); err != nil {
			t.Errorf("without an API server: %v", err)
		}
	})
}
