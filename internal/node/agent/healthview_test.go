package agent

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestNodeHealthIsLevelTriggered: the condition and the taint are written again after someone has edited them or the Node
// was made again, and nothing is written while the Node says so already.
func TestNodeHealthIsLevelTriggered(t *testing.T) {
	node := func(taints ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node"}, "spec": map[string]any{"taints": taints},
		}}
	}
	foreign := map[string]any{"key": "example.com/other", "effect": "NoSchedule"}
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{nodes(): "NodeList"}, node(foreign))
	applied := 0
	// The fake cannot apply; this is what an apply of one condition to a Node without one comes to.
	api.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetSubresource() != "status" {
			return false, nil, nil
		}
		applied++
		wanted := &unstructured.Unstructured{}
		if err := wanted.UnmarshalJSON(patch.GetPatch()); err != nil {
			return true, nil, err
		}
		current, err := api.Tracker().Get(nodes(), "", "node")
		if err != nil {
			return true, nil, err
		}
		current.(*unstructured.Unstructured).Object["status"] = wanted.Object["status"]
		return true, current, api.Tracker().Update(nodes(), current, "")
	})
	a := &Agent{api: api, config: &v1alpha1.AgentConfig{NodeName: "node"}, clock: testingclock.NewFakeClock(time.Unix(1000, 0))}
	sick := nodeHealth{taint: true, reason: "Unhealthy", message: "GPU 3 is Unhealthy"}
	writes := func() int {
		count := 0
		for _, action := range api.Actions() {
			if action.GetVerb() == "patch" {
				count++
			}
		}
		return count
	}
	check := func(when string, wantWrites int) {
		t.Helper()
		api.ClearActions()
		if err := a.writeHealth(t.Context(), sick); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := writes(); got != wantWrites {
			t.Errorf("%s: %d writes, want %d", when, got, wantWrites)
		}
		got, err := api.Resource(nodes()).Get(t.Context(), "node", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		taints, _, _ := unstructured.NestedSlice(got.Object, "spec", "taints")
		if !conditionIs(got, "False", "Unhealthy", sick.message) || len(taints) != 2 {
			t.Errorf("%s: the Node has %v and taints %v, want the condition, the taint and the foreign one", when, got.Object["status"], taints)
		}
	}
	check("at first", 2)
	check("with nothing changed", 0)
	edited, err := api.Resource(nodes()).Get(t.Context(), "node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(edited.Object, "status")
	if err := api.Tracker().Update(nodes(), edited, ""); err != nil {
		t.Fatal(err)
	}
	check("after the condition was removed", 1)
	if err := api.Tracker().Update(nodes(), node(foreign), ""); err != nil {
		t.Fatal(err)
	}
	check("after the Node was made again", 2)
	if applied != 3 {
		t.Errorf("the condition was applied %d times, want 3", applied)
	}
}

// TestNodeHealthReason: the condition says Draining while nothing is worse than that, so that a GPU that waits for its pods can
// be told from one that takes them down.
func TestNodeHealthReason(t *testing.T) {
	tests := map[string]struct {
		states         []gpu.State
		status, reason string
		taint          bool
	}{
		"no GPU":                 {nil, "True", "Healthy", false},
		"healthy":                {[]gpu.State{gpu.Healthy}, "True", "Healthy", false},
		"degraded":               {[]gpu.State{gpu.Degraded, gpu.Healthy}, "True", "Healthy", false},
		"draining":               {[]gpu.State{gpu.Healthy, gpu.Draining}, "False", "Draining", false},
		"degraded and draining":  {[]gpu.State{gpu.Degraded, gpu.Draining}, "False", "Draining", false},
		"draining and unhealthy": {[]gpu.State{gpu.Draining, gpu.Unhealthy}, "False", "Unhealthy", true},
		"gone":                   {[]gpu.State{gpu.Gone, gpu.Draining}, "False", "Unhealthy", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			verdicts := map[gpu.UUID]deviceVerdict{}
			for i, state := range tc.states {
				verdicts[gpu.UUID(rune('a'+i))] = deviceVerdict{name: string(rune('a' + i)), state: state}
			}
			a := &Agent{config: &v1alpha1.AgentConfig{TaintUnhealthy: true}}
			got := a.healthSummary(verdicts)
			if got.status() != tc.status || got.reason != tc.reason || got.taint != tc.taint {
				t.Errorf("status %s, reason %s, taint %v; want %s, %s, %v", got.status(), got.reason, got.taint, tc.status, tc.reason, tc.taint)
			}
		})
	}
}
