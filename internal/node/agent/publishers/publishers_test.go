package publishers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// world is an API server with the problems and conditions of an agent.
type world struct {
	conditions *nodeapi.Conditions
	mu         sync.Mutex
	problems   map[string]error
}

func newWorld() *world {
	return &world{conditions: nodeapi.NewConditions(clock.RealClock{}, func(nodeapi.Event) {}), problems: map[string]error{}}
}

func (w *world) workers(client dynamic.Interface) *Workers {
	return New(Deps{
		Client: client, NodeName: fakeapi.NodeName, Retry: nodeapi.Retry{Clock: clock.RealClock{}, NodeName: fakeapi.NodeName}, Conditions: w.conditions,
		Report: func(source, _ string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.problems[source] = err
		},
		Log: slog.New(slog.DiscardHandler),
	})
}

// setAll sets a value of each worker.
func setAll(ctx context.Context, workers *Workers) {
	workers.SetCondition(nodeapi.NodeCondition{Reason: "Unhealthy", Message: "GPU 0"})
	workers.SetTaint(true)
	workers.SetMIGState(ctx, "success", false)
	workers.SetGPUNode(&v1alpha1.GPUNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "GPUNode"}, ObjectMeta: metav1.ObjectMeta{Name: fakeapi.NodeName}})
}

// TestStandalone checks that without an API server everything can be set, and that Run returns immediately.
func TestStandalone(t *testing.T) {
	workers := newWorld().workers(nil)
	setAll(t.Context(), workers)
	workers.SetMIGState(t.Context(), "pending", true)
	if err := workers.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEachObjectHasAWorker checks that, while the writes of one object fail, the others are written, and that the
// failure is a problem until a write succeeds.
func TestEachObjectHasAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, w := fakeapi.New(t), newWorld()
		api.Intercept(func(r fakeapi.Request) error {
			if r.Resource == "gpunodes" && r.Verb != "get" {
				return errors.New("no route")
			}
			return nil
		})
		workers := w.workers(api)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- workers.Run(ctx) }()
		setAll(ctx, workers)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := api.Node().GetLabels()[configwatch.LabelMIGState]; got != "success" {
			t.Errorf("the label of the MIG state is %q, want success", got)
		}
		w.mu.Lock()
		if w.problems["gpunode"] == nil || w.problems["node-taint"] != nil {
			t.Errorf("problems are %v, want one of the GPUNode alone", w.problems)
		}
		w.mu.Unlock()
		api.Intercept(nil)
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		if w.problems["gpunode"] != nil {
			t.Errorf("after the repair: %v", w.problems["gpunode"])
		}
		w.mu.Unlock()
		began := time.Now()
		if workers.SetMIGState(ctx, "pending", true); time.Since(began) > stateTimeout || api.Node().GetLabels()[configwatch.LabelMIGState] != "pending" {
			t.Errorf("after %s the label is not there", time.Since(began))
		}
		cancel()
		<-ended
	})
}

// TestSetMIGCondition checks that an empty status removes the condition.
func TestSetMIGCondition(t *testing.T) {
	w := newWorld()
	workers := w.workers(nil)
	workers.SetMIGCondition(metav1.ConditionTrue, "Applied", "every GPU is partitioned as wanted")
	if all := w.conditions.All(); len(all) != 1 || all[0].Type != nodeapi.ConditionMIG {
		t.Errorf("conditions are %v", all)
	}
	if workers.SetMIGCondition("", "", ""); len(w.conditions.All()) != 0 {
		t.Errorf("conditions are %v, want none", w.conditions.All())
	}
}
