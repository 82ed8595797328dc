package nodeapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// stateKey is the label of the MIG state.
const stateKey = "nvidia.com/mig.config.state"

// writers are all workers of the Node, running beside a server.
type writers struct {
	*fakeapi.Server
	condition *nodeapi.Publisher[nodeapi.NodeCondition]
	taint     *nodeapi.Publisher[bool]
	state     *nodeapi.Publisher[string]

	mu       sync.Mutex
	problems map[string]string
}

func withNode(t *testing.T, body func(*testing.T, *writers)) {
	synctest.Test(t, func(t *testing.T) {
		w := &writers{Server: fakeapi.New(t), problems: map[string]string{}}
		report := func(source string) func(error) {
			return func(err error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				delete(w.problems, source)
				if err != nil {
					w.problems[source] = err.Error()
				}
			}
		}
		w.condition = nodeapi.NewNodeCondition(w, retry(), report("condition"), nil)
		w.taint = nodeapi.NewNodeTaint(w, retry(), report("taint"), nil)
		w.state = nodeapi.NewMIGState(w, stateKey, retry(), report("state"), nil)
		for _, run := range []func(context.Context) error{w.condition.Run, w.taint.Run, w.state.Run} {
			go run(t.Context())
		}
		synctest.Wait()
		body(t, w)
	})
}

func sick() nodeapi.NodeCondition {
	return nodeapi.NodeCondition{Reason: "Unhealthy", Message: "GPU 3 is Unhealthy"}
}

// state returns the state of the Node: the statuses of its conditions, the keys of its taints, its labels.
func state(t *testing.T, api *fakeapi.Server) string {
	t.Helper()
	node := api.Node()
	var parts []string
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	for _, one := range conditions {
		c := one.(map[string]any)
		parts = append(parts, fmt.Sprintf("%s=%s", c["type"], c["status"]))
	}
	taints, _, _ := unstructured.NestedSlice(node.Object, "spec", "taints")
	for _, one := range taints {
		parts = append(parts, "taint:"+one.(map[string]any)["key"].(string))
	}
	for key, value := range node.GetLabels() {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

const (
	bare = "Ready=True taint:example.com/other zone=a"
	full = "GPUsHealthy=False Ready=True nvidia.com/mig.config.state=success taint:berth.dev/gpu-unhealthy taint:example.com/other zone=a"
)

// TestNodeIsLevelTriggered checks that the condition, the taint and the label are written again after an edit by hand
// or when the Node was created again, that the data of other programs stays, and that nothing is written while it is
// equal.
func TestNodeIsLevelTriggered(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		check := func(when string, wantWrites int) {
			t.Helper()
			time.Sleep(11 * time.Minute)
			synctest.Wait()
			if got := w.Writes(""); got != wantWrites {
				t.Errorf("%s: %d writes, want %d", when, got, wantWrites)
			}
			if got := state(t, w.Server); got != full {
				t.Errorf("%s: the Node has\n%s, want\n%s", when, got, full)
			}
			w.ClearActions()
		}
		if got := state(t, w.Server); got != bare {
			t.Errorf("the new Node has\n%s, want\n%s", got, bare)
		}
		w.ClearActions()
		publish := func() {
			w.condition.Publish(sick())
			w.taint.Publish(true)
			w.state.Publish("success")
		}
		publish()
		check("at first", 3)
		publish()
		check("published again", 0)
		check("with nothing changed", 0)
		w.Edit(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
		check("after the condition was removed", 1+1)
		w.Edit(`{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"GPUsHealthy","status":"True","reason":"Unhealthy","message":"GPU 3 is Unhealthy"}]}}`)
		check("after the condition was changed", 1+1)
		w.Edit(`{"spec":{"taints":[{"key":"example.com/other","effect":"NoSchedule"}]}}`)
		check("after the taint was removed", 1+1)
		w.Edit(`{"metadata":{"labels":{"nvidia.com/mig.config.state":"failed"}}}`)
		check("after the label was changed", 1+1)
		w.Edit(`{"metadata":{"labels":{"nvidia.com/mig.config.state":null}}}`)
		check("after the label was removed", 1+1)
		w.ReplaceNode("uid-2")
		check("after the Node was made again", 3+2)
	})
}

// TestNodeIsWrittenAsOnNodesOfEarlierVersions checks that the field managers and the fields are those of objects on
// upgraded nodes, that the taint is never applied, and that no data of other programs is part of an apply.
func TestNodeIsWrittenAsOnNodesOfEarlierVersions(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		w.ClearActions()
		w.condition.Publish(sick())
		synctest.Wait()
		w.taint.Publish(true)
		synctest.Wait()
		w.state.Publish("pending")
		synctest.Wait()
		type write struct {
			manager     string
			subresource string
			kind        types.PatchType
			force       bool
		}
		var got []write
		var bodies []string
		for _, action := range w.Actions() {
			if patch, ok := action.(clienttesting.PatchActionImpl); ok {
				force := patch.PatchOptions.Force != nil && *patch.PatchOptions.Force
				got = append(got, write{patch.PatchOptions.FieldManager, patch.GetSubresource(), patch.GetPatchType(), force})
				bodies = append(bodies, string(patch.GetPatch()))
			}
		}
		want := []write{
			{"berth-agent-health", "status", types.ApplyPatchType, true},
			{"berth-agent-health", "", types.JSONPatchType, false},
			{"berth-agent-mig", "", types.ApplyPatchType, true},
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(write{})); diff != "" {
			t.Fatalf("writes (-want +got):\n%s", diff)
		}
		if strings.Contains(bodies[0], "Ready") || strings.Contains(bodies[0], "taints") {
			t.Errorf("the condition is applied as %s", bodies[0])
		}
		if want := `[{"op":"test","path":"/spec/taints","value":[{"effect":"NoSchedule","key":"example.com/other"}]},` +
			`{"op":"add","path":"/spec/taints","value":[{"effect":"NoSchedule","key":"example.com/other"},` +
			`{"effect":"NoSchedule","key":"berth.dev/gpu-unhealthy","value":"true"}]}]`; bodies[1] != want {
			t.Errorf("the taint is patched as %s", bodies[1])
		}
		if !strings.Contains(bodies[2], `"uid":"uid-1"`) || strings.Contains(bodies[2], "zone") {
			t.Errorf("the label is applied as %s", bodies[2])
		}
	})
}

// TestConditionTransition checks that the time of the last transition changes with the status only.
func TestConditionTransition(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		since := func() string {
			conditions, _, _ := unstructured.NestedSlice(w.Node().Object, "status", "conditions")
			for _, one := range conditions {
				if c := one.(map[string]any); c["type"] == "GPUsHealthy" {
					return c["lastTransitionTime"].(string)
				}
			}
			return ""
		}
		publish := func(c nodeapi.NodeCondition) string {
			time.Sleep(time.Minute)
			w.condition.Publish(c)
			synctest.Wait()
			return since()
		}
		first := publish(sick())
		if second := publish(nodeapi.NodeCondition{Reason: "Draining", Message: "GPU 3 is Draining"}); first == "" || second != first {
			t.Errorf("False since %q, and since %q after a change of the reason", first, second)
		}
		if third := publish(nodeapi.NodeCondition{OK: true, Reason: "Healthy"}); third == first {
			t.Errorf("True since %q, when it became False", third)
		}
	})
}

// TestHangingWriteDelaysNoOther checks that, while the write of one object hangs, the others are written, and events
// too.
func TestHangingWriteDelaysNoOther(t *testing.T) {
	kinds := map[string]func(fakeapi.Request) bool{
		"label":     func(r fakeapi.Request) bool { return r.FieldManager == "berth-agent-mig" },
		"condition": func(r fakeapi.Request) bool { return r.Subresource == "status" },
		"taint":     func(r fakeapi.Request) bool { return r.Verb == "patch" && r.FieldManager == "berth-agent-health" },
		"event":     func(r fakeapi.Request) bool { return r.Verb == "create" && r.Resource == "events" },
	}
	for hanging, matches := range kinds {
		t.Run(hanging, func(t *testing.T) {
			withNode(t, func(t *testing.T, w *writers) {
				release := make(chan struct{})
				w.Intercept(func(request fakeapi.Request) error {
					if matches(request) {
						<-release
					}
					return nil
				})
				events := nodeapi.NewEvents(w, retry(), nil)
				go events.Run(t.Context())
				began := time.Now()
				w.condition.Publish(sick())
				w.taint.Publish(true)
				w.state.Publish("success")
				events.Publish(nodeapi.GPUHealthy("GPU 3"))
				synctest.Wait()
				got := map[string]bool{
					"condition": strings.Contains(state(t, w.Server), "GPUsHealthy=False"),
					"taint":     strings.Contains(state(t, w.Server), "berth.dev/gpu-unhealthy"),
					"label":     strings.Contains(state(t, w.Server), stateKey+"=success"),
					"event":     false,
				}
				for _, event := range created(w.Server) {
					list, err := w.Resource(eventsResource).Namespace(event.GetNamespace()).List(t.Context(), metav1.ListOptions{})
					got["event"] = err == nil && len(list.Items) == 1
				}
				want := map[string]bool{"condition": true, "taint": true, "label": true, "event": true}
				want[hanging] = false
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("written while the %s hangs (-want +got):\n%s", hanging, diff)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the others took %v", took)
				}
				close(release)
				synctest.Wait()
				if got := state(t, w.Server); got != full {
					t.Errorf("after the release the Node has\n%s, want\n%s", got, full)
				}
			})
		})
	}
}

// TestTaintConflict checks that taints that change between the read and the patch are kept, at the cost of one more read
// and one more patch for each change, while a change of anything else costs nothing.
func TestTaintConflict(t *testing.T) {
	others := func(n int) string {
		return fmt.Sprintf(`{"spec":{"taints":[{"key":"example.com/other","effect":"NoSchedule"},{"key":"example.com/%d","effect":"NoSchedule"}]}}`, n)
	}
	const first, taint = `{"spec":{"taints":null}}`, "taint:berth.dev/gpu-unhealthy "
	tests := map[string]struct {
		// edits are made by another program, each between a read and the patch after it; atFirst is made before.
		atFirst  string
		edits    []string
		patches  int
		reported bool
		want     string
	}{
		"one":                         {"", []string{others(1)}, 2, false, "Ready=True " + taint + "taint:example.com/1 taint:example.com/other zone=a"},
		"four":                        {"", []string{others(1), others(2), others(3), others(4)}, 5, false, "Ready=True " + taint + "taint:example.com/4 taint:example.com/other zone=a"},
		"more":                        {"", []string{others(1), others(2), others(3), others(4), others(5)}, 5, true, "Ready=True " + taint + "taint:example.com/5 taint:example.com/other zone=a"},
		"the first taint":             {first, []string{others(1)}, 2, false, "Ready=True " + taint + "taint:example.com/1 taint:example.com/other zone=a"},
		"no taint before":             {first, nil, 1, false, "Ready=True " + taint + "zone=a"},
		"the last taint":              {"", []string{first}, 2, false, "Ready=True " + taint + "zone=a"},
		"the agent's own, by hand":    {"", []string{`{"spec":{"taints":[{"key":"berth.dev/gpu-unhealthy","effect":"NoSchedule"}]}}`}, 1, false, "Ready=True " + taint + "zone=a"},
		"a label":                     {"", []string{`{"metadata":{"labels":{"zone":"b"}}}`}, 1, false, "Ready=True " + taint + "taint:example.com/other zone=b"},
		"a condition, by the kubelet": {"", []string{`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`}, 1, false, "Ready=False " + taint + "taint:example.com/other zone=a"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, w *writers) {
				if tc.atFirst != "" {
					w.Edit(tc.atFirst)
				}
				var patches atomic.Int64
				w.Intercept(func(request fakeapi.Request) error {
					if request.FieldManager != "berth-agent-health" {
						return nil
					}
					if n := int(patches.Add(1)); n <= len(tc.edits) {
						w.Edit(tc.edits[n-1])
					}
					return nil
				})
				w.taint.Publish(true)
				synctest.Wait()
				w.mu.Lock()
				problem, reported := w.problems["taint"]
				w.mu.Unlock()
				if got := int(patches.Load()); got != tc.patches || reported != tc.reported {
					t.Errorf("%d patches, reported %q; want %d, reported %v", got, problem, tc.patches, tc.reported)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := state(t, w.Server); got != tc.want {
					t.Errorf("the Node has\n%s, want\n%s", got, tc.want)
				}
			})
		})
	}
}

// TestTaintIsRefused checks that a patch that the API server refuses although the taints are as they were read is not
// sent again at once.
func TestTaintIsRefused(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		patches := 0
		w.Intercept(func(request fakeapi.Request) error {
			if request.FieldManager != "berth-agent-health" {
				return nil
			}
			patches++
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, fakeapi.NodeName, field.ErrorList{field.Forbidden(nil, "by a policy")})
		})
		w.taint.Publish(true)
		synctest.Wait()
		w.mu.Lock()
		problem := w.problems["taint"]
		w.mu.Unlock()
		if patches != 1 || !strings.Contains(problem, "by a policy") {
			t.Errorf("%d patches, reported %q; want 1, and the reason", patches, problem)
		}
	})
}

// TestErrorsNameTheField checks that a report names what was not written, and is withdrawn by the next success.
func TestErrorsNameTheField(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		fail := func(verbs ...string) {
			w.Intercept(func(request fakeapi.Request) error {
				if slices.Contains(verbs, request.Verb) {
					return errors.New("no route")
				}
				return nil
			})
		}
		publish := func(c nodeapi.NodeCondition, taint bool, label string, want map[string]string) {
			t.Helper()
			w.condition.Publish(c)
			w.taint.Publish(taint)
			w.state.Publish(label)
			time.Sleep(90 * time.Second)
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if diff := cmp.Diff(want, w.problems); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		}
		fail("patch", "apply")
		publish(sick(), true, "success", map[string]string{
			"condition": "write condition GPUsHealthy of Node node-0: no route",
			"taint":     "write taint berth.dev/gpu-unhealthy of Node node-0: no route",
			"state":     "write label nvidia.com/mig.config.state of Node node-0: no route",
		})
		fail("get")
		publish(sick(), true, "success", map[string]string{
			"condition": "read Node node-0, to write its condition GPUsHealthy: no route",
			"taint":     "write taint berth.dev/gpu-unhealthy of Node node-0: no route",
			"state":     "write label nvidia.com/mig.config.state of Node node-0: no route",
		})
		w.Intercept(nil)
		publish(sick(), true, "success", map[string]string{})
		if got := state(t, w.Server); got != full {
			t.Errorf("the Node has\n%s, want\n%s", got, full)
		}
	})
}

// TestRemove checks that only the agent's data is removed, also by a second call, and that a Node that does not exist
// is not created.
func TestRemove(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		w.condition.Publish(sick())
		w.taint.Publish(true)
		w.state.Publish("success")
		synctest.Wait()
		remove := func(api *fakeapi.Server) error {
			return errors.Join(nodeapi.RemoveHealth(t.Context(), api, fakeapi.NodeName),
				nodeapi.RemoveMIGState(t.Context(), api, fakeapi.NodeName))
		}
		for range 2 {
			if err := remove(w.Server); err != nil {
				t.Fatal(err)
			}
			if got := state(t, w.Server); got != bare {
				t.Errorf("the Node has\n%s, want\n%s", got, bare)
			}
		}
		w.Edit(`{"metadata":{"labels":{"nvidia.com/mig.config.state":"success"}}}`)
		if err := remove(w.Server); err != nil || !strings.Contains(state(t, w.Server), stateKey+"=success") {
			t.Errorf("mig-manager's label is gone, or %v", err)
		}
		w.Intercept(func(request fakeapi.Request) error {
			if request.Verb == "apply" {
				return errors.New("no route")
			}
			return nil
		})
		if err := remove(w.Server); err == nil || strings.Count(err.Error(), "no route") != 2 {
			t.Errorf("an API server that is away: %v", err)
		}
		w.Intercept(nil)
		if err := w.Nodes().Delete(t.Context(), fakeapi.NodeName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := remove(w.Server); err != nil {
			t.Errorf("without a Node: %v", err)
		}
		if _, err := w.Nodes().Get(t.Context(), fakeapi.NodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a Node was created: %v", err)
		}
		if err := errors.Join(nodeapi.RemoveHealth(t.Context(), nil, "x"), nodeapi.RemoveMIGState(t.Context(), nil, "x")); err != nil {
			t.Errorf("without an API server: %v", err)
		}
	})
}

// TestMIGStateOfMIGManager checks that a label that mig-manager wrote stays while the agent has no state, and that the
// agent takes it over when it has one.
func TestMIGStateOfMIGManager(t *testing.T) {
	withNode(t, func(t *testing.T, w *writers) {
		w.Edit(`{"metadata":{"labels":{"nvidia.com/mig.config.state":"success"}}}`)
		w.ClearActions()
		w.state.Publish("")
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := w.Writes(""); got != 0 || w.Node().GetLabels()[stateKey] != "success" {
			t.Errorf("%d writes, state %q; want none, and mig-manager's label", got, w.Node().GetLabels()[stateKey])
		}
		w.state.Publish("failed")
		synctest.Wait()
		if got := w.Node().GetLabels()[stateKey]; got != "failed" {
			t.Errorf("state %q", got)
		}
		time.Sleep(time.Minute)
		w.state.Publish("")
		synctest.Wait()
		if got, has := w.Node().GetLabels()[stateKey]; has {
			t.Errorf("state %q is left", got)
		}
	})
}
