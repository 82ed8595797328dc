package nodeapi_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

var eventsResource = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}

func retry() nodeapi.Retry {
	return nodeapi.Retry{Clock: clock.RealClock{}, NodeName: fakeapi.NodeName}
}

// created are the events that the server was requested to create, also those that it refused.
func created(api *fakeapi.Server) []*unstructured.Unstructured {
	var events []*unstructured.Unstructured
	for _, action := range api.Actions() {
		if create, ok := action.(clienttesting.CreateActionImpl); ok && create.GetResource().Resource == "events" {
			events = append(events, create.GetObject().(*unstructured.Unstructured))
		}
	}
	return events
}

// TestEventsOfProblems: a state file that was lost or cannot be written is an event; other problems are not.
func TestEventsOfProblems(t *testing.T) {
	withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
		for _, code := range []string{"STATE_DAMAGED", "CONFIG_REFUSED", "STATE_UNWRITABLE", "STATE_NEWER"} {
			events.Problem(gpu.Cause{Code: code, Message: code})
			synctest.Wait()
		}
		var got []string
		for _, event := range created(api) {
			got = append(got, fmt.Sprint(event.Object["reason"], " ", event.Object["note"]))
		}
		if want := []string{"StateLost STATE_DAMAGED", "StateUnwritable STATE_UNWRITABLE", "StateLost STATE_NEWER"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// withEvents runs body beside a writer of events, in a bubble with its own time.
func withEvents(t *testing.T, body func(*testing.T, *fakeapi.Server, *nodeapi.Events)) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(t)
		events := nodeapi.NewEvents(api, retry(), slog.New(slog.DiscardHandler))
		go events.Run(t.Context())
		body(t, api, events)
	})
}

// TestCatalogue checks that each function gives the type, the reason and the note that users and alerts have seen so
// far.
func TestCatalogue(t *testing.T) {
	tests := map[string]struct {
		event  nodeapi.Event
		kind   string
		reason string
		note   string
	}{
		"healthy": {nodeapi.GPUHealthy("GPU 3 (x)"), "Normal", "GPUHealthy", "GPU 3 (x) is healthy again"},
		"unhealthy": {nodeapi.GPUNotHealthy("GPU 3 (x)", gpu.Unhealthy, "XID_79: gone",
			[]string{"pod a/b", "pod c/d"}), "Warning", "GPUUnhealthy", "GPU 3 (x) is Unhealthy: XID_79: gone; held by pod a/b, pod c/d"},
		"gone, no cause": {nodeapi.GPUNotHealthy("GPU 3 (x)", gpu.Gone, "", nil), "Warning", "GPUGone",
			"GPU 3 (x) is Gone: it does not answer"},
		"state lost":       {nodeapi.StateLost("file damaged"), "Warning", "StateLost", "file damaged"},
		"state unwritable": {nodeapi.StateUnwritable("no space"), "Warning", "StateUnwritable", "no space"},
		"replicas":         {nodeapi.SharesOfOneGPU("2 of one"), "Warning", "SharesOfOneGPU", "2 of one"},
		"condition met": {nodeapi.ConditionChanged(nodeapi.ConditionConfig, metav1.ConditionTrue, "InForce", "x"),
			"Normal", "ConfigAcceptedInForce", "x"},
		"condition not met": {nodeapi.ConditionChanged(nodeapi.ConditionMIG, metav1.ConditionFalse, "Waiting", "x"),
			"Warning", "MIGAppliedWaiting", "x"},
		"claim":               {nodeapi.ClaimNotPrepared("ml", "train", "u1", "claim ml/train: no"), "Warning", "ClaimNotPrepared", "claim ml/train: no"},
		"a note at the limit": {nodeapi.StateLost(strings.Repeat("é", 600)), "Warning", "StateLost", strings.Repeat("é", 510) + "..."},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
				events.Publish(tc.event)
				synctest.Wait()
				got := created(api)
				if len(got) != 1 {
					t.Fatalf("%d events, want 1", len(got))
				}
				note, _, _ := unstructured.NestedString(got[0].Object, "note")
				if len(note) > 1024 || !utf8.ValidString(note) {
					t.Errorf("the note has %d bytes, valid UTF-8: %v", len(note), utf8.ValidString(note))
				}
				namespace, regarding := "default", map[string]any{"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "node-0"}
				if name == "claim" {
					namespace, regarding = "ml", map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": "ml", "name": "train", "uid": "u1"}
				}
				if got[0].GetNamespace() != namespace {
					t.Errorf("the event is in namespace %s, want %s", got[0].GetNamespace(), namespace)
				}
				want := map[string]any{
					"type": tc.kind, "reason": tc.reason, "note": tc.note, "action": tc.reason, "reportingController": "berth.dev/agent", "reportingInstance": "node-0",
					"regarding": regarding,
				}
				for key, value := range want {
					if diff := cmp.Diff(value, got[0].Object[key]); diff != "" {
						t.Errorf("%s (-want +got):\n%s", key, diff)
					}
				}
			})
		})
	}
}

// TestEqualEventsAreWrittenOnceInTenMinutes also counts: creations are the only requests to the API server.
func TestEqualEventsAreWrittenOnceInTenMinutes(t *testing.T) {
	withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
		api.ClearActions()
		for range 19 { // every minute from 0 to 18
			events.Publish(nodeapi.GPUHealthy("GPU 3"))
			time.Sleep(time.Minute)
		}
		events.Publish(nodeapi.GPUHealthy("GPU 4"))
		synctest.Wait()
		if got := len(created(api)); got != 3 {
			t.Errorf("%d events, want 3: two of GPU 3 in 18 minutes and one of GPU 4", got)
		}
		if got := len(api.Actions()); got != 3 {
			t.Errorf("%d requests, want 3", got)
		}
	})
}

// TestEventsOfClaimsAreBounded: in each minute at most ten events about claims are written, and those about the node are not affected.
func TestEventsOfClaimsAreBounded(t *testing.T) {
	withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
		for minute := range 3 {
			for i := range 30 {
				events.Publish(nodeapi.ClaimNotPrepared("ml", fmt.Sprint(minute, i), "u", "held by a pod"))
				events.Publish(nodeapi.ClaimNotPrepared("ml", fmt.Sprint(minute, i), "u", "held by a pod"))
				synctest.Wait()
			}
			events.Publish(nodeapi.GPUHealthy(fmt.Sprint("GPU ", minute)))
			synctest.Wait()
			if got := len(created(api)); got != 11*(minute+1) {
				t.Errorf("%d events after minute %d, want ten about claims and one about the node in each", got, minute)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestEventIsRetried checks that a request that fails is repeated with growing pauses and not forever, and that a
// refused event is not repeated.
func TestEventIsRetried(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no role"))
	tests := map[string]struct {
		answers []error // the last one counts for all further requests
		want    int
		stored  int
	}{
		"away for a moment":         {[]error{errors.New("away"), errors.New("away"), nil}, 3, 1},
		"away for long":             {[]error{errors.New("away")}, 5, 0},
		"not permitted":             {[]error{forbidden}, 1, 0},
		"created without an answer": {[]error{apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, "x")}, 1, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
				var at []time.Duration
				began := time.Now()
				api.Intercept(func(fakeapi.Request) error {
					at = append(at, time.Since(began))
					return tc.answers[min(len(at), len(tc.answers))-1]
				})
				events.Publish(nodeapi.GPUHealthy("GPU 3"))
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(at) != tc.want {
					t.Errorf("%d attempts at %v, want %d", len(at), at, tc.want)
				}
				for i := 2; i < len(at); i++ {
					if at[i]-at[i-1] <= at[i-1]-at[i-2] {
						t.Errorf("the pauses do not grow: attempts at %v", at)
					}
				}
				api.Intercept(nil)
				list, err := api.Resource(eventsResource).List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != tc.stored {
					t.Errorf("%d events are stored, %v; want %d", len(list.Items), err, tc.stored)
				}
			})
		})
	}
}

// TestPublishOfEventsNeverWaits checks it without an API server and with one that hangs.
func TestPublishOfEventsNeverWaits(t *testing.T) {
	nodeapi.NewEvents(nil, retry(), nil).Publish(nodeapi.GPUHealthy("GPU 3"))
	withEvents(t, func(t *testing.T, api *fakeapi.Server, events *nodeapi.Events) {
		release := make(chan struct{})
		api.Intercept(func(fakeapi.Request) error { <-release; return nil })
		for i := range 200 {
			events.Publish(nodeapi.GPUHealthy(strings.Repeat("x", i)))
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		if got := len(created(api)); got < 64 || got > 66 {
			t.Errorf("%d events were written, want those that the queue holds", got)
		}
	})
}

func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []nodeapi.Event
		c := nodeapi.NewConditions(clock.RealClock{}, func(e nodeapi.Event) { events = append(events, e) })
		changes := c.Subscribe()
		defer changes.Close()
		<-changes.C()
		began := time.Now()
		step := func(when string, do func(), wantEvents int, wantSignal bool) {
			t.Helper()
			events = nil
			do()
			signalled := false
			select {
			case <-changes.C():
				signalled = true
			default:
			}
			if len(events) != wantEvents || signalled != wantSignal {
				t.Errorf("%s: %d events, signalled %v; want %d, %v", when, len(events), signalled, wantEvents, wantSignal)
			}
			time.Sleep(time.Minute)
		}
		refused := func() { c.Set(nodeapi.ConditionConfig, metav1.ConditionFalse, "Refused", "line 3") }
		step("set", refused, 1, true)
		step("set again", refused, 0, false)
		step("another message", func() { c.Set(nodeapi.ConditionConfig, metav1.ConditionFalse, "Refused", "line 4") }, 1, true)
		if got := c.All(); len(got) != 1 || !got[0].LastTransitionTime.Time.Equal(began) || got[0].Message != "line 4" {
			t.Errorf("conditions are %+v, want the newest message and the first time", got)
		}
		step("met", func() { c.Set(nodeapi.ConditionConfig, metav1.ConditionTrue, "InForce", "") }, 1, true)
		step("a long message", func() { c.Set(nodeapi.ConditionMIG, metav1.ConditionFalse, "Failed", strings.Repeat("é", 20000)) }, 1, true)
		if got := c.All(); len(got) != 2 || len(got[1].Message) != 32768 {
			t.Errorf("%d conditions, want 2 with the last message cut to the API's limit", len(got))
		}
		step("cleared", func() { c.Clear(nodeapi.ConditionMIG) }, 0, true)
		step("cleared again", func() { c.Clear(nodeapi.ConditionMIG) }, 0, false)
	})
}
