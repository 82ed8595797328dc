package migsync

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// dynamicRule makes a GPU dynamic.
func dynamicRule(index int) v1alpha1.GPURule {
	return v1alpha1.GPURule{
		Select: v1alpha1.GPUSelector{Index: []int{index}}, Allocation: &v1alpha1.Allocation{API: v1alpha1.AllocationDRA}, DynamicMIG: true,
	}
}

func holds(kind gpu.HolderKind, key gpu.DeviceKey, profile string, at gpu.Placement) ledger.Holding {
	return ledger.Holding{Holding: gpu.Holding{Key: key, Holder: gpu.Holder{Kind: kind, ID: "x"}, Profile: profile, Placement: at}}
}

// hold replaces the holdings.
func (w *world) hold(held ...ledger.Holding) {
	w.set(func() { w.held = held })
	w.ledger.Set()
}

// TestHoldingsOfDynamicGPUs: a holding of a dynamic GPU causes one attempt, and its end another one; one of another GPU causes none.
// Neither the condition nor the label show them, and the GPU is not withheld.
func TestHoldingsOfDynamicGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.state.Config = &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamicRule(0)}}
		w.start(t)
		attempt := []string{"reconcile", "settle", "resume"}
		steps := []struct {
			event string
			do    func()
			want  []string
		}{
			{"the start", func() {}, attempt},
			{"another GPU", func() { w.hold(holds(gpu.HolderPod, gpu.DeviceKey{GPU: "GPU-1"}, "", gpu.Placement{})) }, nil},
			{"a claim", func() {
				w.hold(holds(gpu.HolderClaim, gpu.Placed("GPU-0", gpu.Placement{Size: 1}), "1g.10gb", gpu.Placement{}))
			}, attempt},
			{"the same", w.ledger.Set, nil},
			{"its end", func() { w.hold() }, attempt},
		}
		for _, step := range steps {
			step.do()
			synctest.Wait()
			if diff := cmp.Diff(step.want, w.took()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.event, diff)
			}
			if changing, other := w.Changing(w.snapshot); w.condition.Status != "" || len(changing)+len(other) > 0 {
				t.Errorf("%s: condition %v, changing %v, to be repartitioned %v", step.event, w.condition, changing, other)
			}
		}
	})
}

// TestEnsure waits for an attempt that began after the call.
func TestEnsure(t *testing.T) {
	const patience = 30 * time.Second
	first := gpu.Placed("GPU-0", gpu.Placement{Size: 1})
	done := func(w *world) {
		w.kept = []mig.Instance{{UUID: "MIG-1", Profile: "1g.10gb", Size: 1}, {UUID: "MIG-2", Profile: "1g.10gb", Start: 1, Size: 1}}
	}
	tests := map[string]struct {
		key    gpu.DeviceKey
		world  func(*world)
		want   gpu.UUID
		refuse string // in the error
		after  time.Duration
	}{
		"done":                            {key: first, world: done, want: "MIG-1"},
		"another profile":                 {key: gpu.Placed("GPU-0", gpu.Placement{Size: 2}), world: done, refuse: "deadline exceeded: GPU-0 has it.", after: patience},
		"the whole GPU":                   {key: gpu.DeviceKey{GPU: "GPU-0"}, want: "GPU-0"},
		"the whole GPU with MIG on":       {key: gpu.DeviceKey{GPU: "GPU-0"}, world: func(w *world) { w.snapshot.GPUs[0].MIG.Enabled = true }, refuse: "deadline exceeded", after: patience},
		"a GPU that is not dynamic":       {key: gpu.DeviceKey{GPU: "GPU-1"}, refuse: "do not follow from claims any more"},
		"a GPU that was removed":          {key: gpu.DeviceKey{GPU: "GPU-9"}, refuse: "GPU GPU-9 is not on this node any more: it was removed, or the driver does not list it; delete the pod"},
		"a mode that takes resets":        {key: first, world: func(w *world) { w.snapshot.GPUs[0].MIG.ModeNeedsReset = true }, refuse: "needs a reset"},
		"a failure":                       {key: first, world: func(w *world) { w.outcome["GPU-0"] = migapply.Failed }, refuse: "GPU-0 is Failed.", after: patience},
		"a failure that is not about it":  {key: first, world: func(w *world) { done(w); w.outcome["GPU-0"] = migapply.Failed }, want: "MIG-1"},
		"a device that cannot be":         {key: first, world: func(w *world) { w.outcome["GPU-0"] = migapply.Refused }, refuse: "GPU-0 is Refused."},
		"a change that waits for a while": {key: first, world: func(w *world) { w.outcome["GPU-0"] = migapply.Waiting }, refuse: "deadline exceeded: GPU-0 is Waiting.", after: patience},
		"a change that waits for a moment": {key: first, world: func(w *world) {
			w.outcome["GPU-0"] = migapply.Waiting
			time.AfterFunc(5*Interval/2, func() { w.set(func() { done(w); delete(w.outcome, "GPU-0") }) })
		}, want: "MIG-1", after: 3 * Interval},
		"a pod that has the GPU": {key: first, world: func(w *world) {
			w.held = []ledger.Holding{holds(gpu.HolderPod, gpu.DeviceKey{GPU: "GPU-0"}, "", gpu.Placement{})}
		}, refuse: "while a pod has it", after: patience},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.state.Config = &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamicRule(0)}}
				w.start(t)
				if test.world != nil {
					w.set(func() { test.world(w) })
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				got, err := w.Ensure(ctx, test.key, "1g.10gb")
				if got != test.want || (err == nil) != (test.refuse == "") || err != nil && !strings.Contains(err.Error(), test.refuse) {
					t.Errorf("got %q, %v", got, err)
				}
				if took := time.Since(began); took != test.after {
					t.Errorf("it took %s, want %s", took, test.after)
				}
			})
		})
	}
}

// TestEnsureWaitsForALaterAttempt: the result of an attempt that began before the call does not count, since it may change the GPU for a
// claim that has ended.
func TestEnsureWaitsForALaterAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.state.Config = &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamicRule(0)}}
		w.start(t)
		hang := make(chan struct{})
		w.set(func() { w.hang, w.kept = hang, []mig.Instance{{UUID: "MIG-1", Profile: "1g.10gb", Size: 1}} })
		w.hardware.Set()
		synctest.Wait()
		got := make(chan gpu.UUID, 1)
		go func() {
			id, err := w.Ensure(t.Context(), gpu.Placed("GPU-0", gpu.Placement{Size: 1}), "1g.10gb")
			if err != nil {
				t.Error(err)
			}
			got <- id
		}()
		synctest.Wait()
		before := w.reconciles
		w.set(func() { w.hang, w.kept = nil, []mig.Instance{{UUID: "MIG-2", Profile: "1g.10gb", Size: 1}} })
		close(hang)
		if id := <-got; id != "MIG-2" || w.reconciles < before+2 {
			t.Errorf("got %s after %d attempts", id, w.reconciles-before)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Ensure(ctx, gpu.Placed("GPU-0", gpu.Placement{Start: 4, Size: 1}), "1g.10gb"); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled call: %v", err)
		}
	})
}
