package migsync

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// TestOncePerEvent counts how often the wanted layouts are computed for one event, while another actor also calls
// Changing at each event, and how often the GPUs are compared with them.
func TestOncePerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		config, hardware, holdings := w.config.Subscribe(), w.hardware.Subscribe(), w.ledger.Subscribe()
		go func() {
			for {
				select {
				case <-t.Context().Done():
					return
				case <-config.C():
				case <-hardware.C():
				case <-holdings.C():
				}
				w.Changing(hardwareFake{w}.Current())
			}
		}()
		w.start(t)
		tests := []struct {
			event    string
			do       func()
			computed int
			compared int
		}{
			{"an edit of one rule", func() {
				w.reconfigure(v1alpha1.GPURule{Select: v1alpha1.GPUSelector{Index: []int{0}}, MIG: &v1alpha1.MIGSettings{Devices: map[string]int{"1g.10gb": 7}}})
			}, 1, 1},
			{"an allocation", w.ledger.Set, 0, 0},
			{"a signal of the configuration without a change", w.config.Set, 0, 1},
			{"another label", func() { w.relabel("all-3g.40gb") }, 1, 1},
			{"a scan", func() { w.scan(func(s *gpu.Snapshot) { s.GPUs[0].MIG.Enabled = true }) }, 1, 1},
			{"nothing for a minute", func() { time.Sleep(time.Minute) }, 0, 0},
			{"an edit for which a GPU waits", func() {
				w.set(func() { w.outcome["GPU-0"] = migapply.Waiting })
				w.relabel("all-1g.10gb")
			}, 1, 1},
			{"a release while a GPU waits", w.ledger.Set, 0, 1},
			{"ten seconds while a GPU waits", func() { time.Sleep(10 * Interval) }, 0, 10},
		}
		for _, tc := range tests {
			reconciles := func() (count int) {
				w.set(func() { count = w.reconciles })
				return count
			}
			before, compared := w.Computed(), reconciles()
			tc.do()
			synctest.Wait()
			if got := w.Computed() - before; got != int64(tc.computed) {
				t.Errorf("%s: the wanted layouts were computed %d times, want %d", tc.event, got, tc.computed)
			}
			if got := reconciles() - compared; got != tc.compared {
				t.Errorf("%s: %d reconciliations, want %d", tc.event, got, tc.compared)
			}
		}
	})
}

// TestOrder checks that devices that change are withheld and announced before the change, and that the label shows the
// result after it. Programs that were ended for the change start again only when the devices have their new use.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.snapshot.GPUs[0].MIG.Enabled = true
		w.start(t)
		steps := []struct {
			event string
			do    func()
			want  []string
		}{
			{"the start", func() {}, []string{"reconcile", "settle", "resume"}},
			{"a layout", func() { w.relabel("all-disabled") },
				[]string{"settle", "state pending", "reconcile", "settle", "resume", "state success"}},
			{"the change is seen", func() {
				w.scan(func(s *gpu.Snapshot) { s.GPUs[0].MIG.Enabled = false })
			}, []string{"reconcile", "settle", "resume"}},
			{"a holder", w.ledger.Set, nil},
			{"no layout", func() { w.relabel("") }, []string{"settle", "reconcile", "settle", "resume", "state "}},
		}
		for _, step := range steps {
			step.do()
			synctest.Wait()
			if diff := cmp.Diff(step.want, w.took()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.event, diff)
			}
		}
	})
}

// TestStateLabel checks that a failure remains on the label until something else is wanted, although the change is
// retried.
func TestStateLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		states := func() []string {
			var states []string
			for _, what := range w.took() {
				if len(what) >= 6 && what[:6] == "state " {
					states = append(states, what[6:])
				}
			}
			return states
		}
		steps := []struct {
			event string
			do    func()
			want  []string
		}{
			{"a layout of which one GPU fails", func() {
				w.set(func() { w.outcome["GPU-1"] = migapply.Failed })
				w.relabel("all-1g.10gb")
			}, []string{"pending", "failed"}},
			{"the same again", func() { time.Sleep(5 * Interval) }, nil},
			{"another layout, for which it waits", func() {
				w.set(func() { w.outcome["GPU-1"] = migapply.Waiting })
				w.relabel("all-3g.40gb")
			}, []string{"pending"}},
			{"it is refused", func() { w.set(func() { w.outcome["GPU-1"] = migapply.Refused }); time.Sleep(2 * Interval) }, []string{"failed"}},
			{"a layout that does not exist", func() { w.relabel("all-9g") }, nil},
			{"the label is not known any more", func() { w.set(func() { w.state.MIG.Known = false }); w.config.Set() }, nil},
			{"known again, and applied", func() {
				w.set(func() { w.outcome, w.state.MIG.Known = nil, true })
				w.relabel("all-disabled")
				time.Sleep(2 * Interval)
			}, []string{"success"}},
		}
		for _, step := range steps {
			step.do()
			synctest.Wait()
			if diff := cmp.Diff(step.want, states()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.event, diff)
			}
		}
	})
}

// TestCondition checks that the condition names what failed, else what waits or is delayed, that a GPU which is being changed leaves it
// as it was, and that problems name the GPUs and the journal.
func TestCondition(t *testing.T) {
	before := metav1.Condition{Status: metav1.ConditionTrue, Reason: "Before"}
	tests := map[string]struct {
		layout   string
		outcome  map[gpu.UUID]migapply.State
		delayed  map[gpu.UUID]bool
		want     metav1.Condition
		problems []string
		unknown  []string
	}{
		"nothing is wanted": {},
		"applied": {layout: "all-1g.10gb", want: metav1.Condition{Status: metav1.ConditionTrue,
			Reason: "Applied", Message: "every GPU is partitioned as wanted"}},
		"waiting": {
			layout: "all-1g.10gb", outcome: map[gpu.UUID]migapply.State{"GPU-0": migapply.Waiting, "GPU-1": migapply.Changing},
			want: metav1.Condition{Status: metav1.ConditionFalse, Reason: "Waiting", Message: "GPU-0 is Waiting."},
		},
		"changing": {
			layout: "all-1g.10gb", outcome: map[gpu.UUID]migapply.State{"GPU-1": migapply.Changing}, want: before,
		},
		"delayed": {
			layout: "all-1g.10gb", outcome: map[gpu.UUID]migapply.State{"GPU-0": migapply.Waiting, "GPU-1": migapply.Changing},
			delayed: map[gpu.UUID]bool{"GPU-1": true},
			want:    metav1.Condition{Status: metav1.ConditionFalse, Reason: "Waiting", Message: "GPU-0 is Waiting.; GPU-1 is Changing."},
		},
		"failed": {
			layout: "all-1g.10gb", outcome: map[gpu.UUID]migapply.State{"GPU-0": migapply.Waiting, "GPU-1": migapply.Failed},
			want:     metav1.Condition{Status: metav1.ConditionFalse, Reason: "Failed", Message: "GPU-1 is Failed."},
			problems: []string{"MIG_FAILED"},
		},
		"unknown": {
			layout: "all-9g", want: metav1.Condition{Status: metav1.ConditionFalse, Reason: "Failed",
				Message: "label nvidia.com/mig.config=all-9g: " + unknown("all-9g").Error()},
			unknown: []string{"MIG_LAYOUT_UNKNOWN"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.relabel(tc.layout)
			w.condition = before
			w.outcome, w.delayed, w.faults = tc.outcome, tc.delayed, []gpu.Cause{{Code: "MIG_JOURNAL_CORRUPT"}}
			w.reconcile(t.Context())
			if diff := cmp.Diff(tc.want, w.condition); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
			for source, want := range map[string][]string{"mig": tc.problems, "mig-layout": tc.unknown,
				"mig-journal": {"MIG_JOURNAL_CORRUPT"}} {
				if diff := cmp.Diff(want, w.reports(source)); diff != "" {
					t.Errorf("problems of %s (-want +got):\n%s", source, diff)
				}
			}
		})
	}
}

// TestChangingWhileADriverHangs checks that Changing does not wait for a change that hangs.
func TestChangingWhileADriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hang := make(chan struct{})
		w.hang = hang
		w.start(t)
		w.relabel("all-1g.10gb")
		if got, _ := w.Changing(w.snapshot); len(got) != 2 {
			t.Errorf("withheld while the driver hangs: %v, want both GPUs", got)
		}
		close(hang)
	})
}

// TestAwaitLayout checks that a start waits for the label no longer than AnswerTimeout, unless it is remembered.
func TestAwaitLayout(t *testing.T) {
	tests := map[string]struct {
		first configwatch.MIG
		// later is in force after a minute.
		later *configwatch.MIG
		want  time.Duration
	}{
		"known":      {first: configwatch.MIG{Known: true}},
		"no answer":  {want: configwatch.AnswerTimeout},
		"remembered": {first: configwatch.MIG{Remembered: true}, later: &configwatch.MIG{Known: true}, want: time.Minute},
		"cancelled":  {first: configwatch.MIG{Remembered: true}, want: time.Hour},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.state.MIG = tc.first
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if tc.later != nil {
					time.AfterFunc(time.Minute, func() { w.set(func() { w.state.MIG = *tc.later }); w.config.Set() })
				}
				began := time.Now()
				w.AwaitLayout(ctx)
				if got := time.Since(began); got != tc.want {
					t.Errorf("it waited for %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// unknown is the error of FindLayout for a layout.
func unknown(name string) error {
	snapshot := migtest.TwoGPUs()
	var gpus []mig.GPU
	for i := range snapshot.GPUs {
		gpus = append(gpus, mig.GPUOf(&snapshot.GPUs[i], func(gpu.DeviceKey) []string { return nil }))
	}
	_, err := mig.FindLayout(mig.HardwareLayouts(gpus), name)
	return err
}
