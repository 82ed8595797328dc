package migsync

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// attempt makes one attempt, after which each GPU that is Applied has the wanted MIG mode.
func (w *world) attempt(t *testing.T) {
	t.Helper()
	w.reconcile(t.Context())
	w.scan(func(s *gpu.Snapshot) {
		for _, status := range w.statuses {
			if i := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == status.UUID }); status.State == migapply.Applied && i >= 0 {
				s.GPUs[i].MIG.Enabled = status.Plan.Wanted.Enabled
			}
		}
	})
}

// claimOf is a claim for a MIG device of GPU-0.
func claimOf() gpu.DeviceKey { return gpu.Placed("GPU-0", gpu.Placement{Size: 1}) }

// TestModeOff turns MIG off after dynamicMIG where it was turned on for claims, and nowhere else.
func TestModeOff(t *testing.T) {
	claimed := holds(gpu.HolderClaim, claimOf(), "1g.10gb", gpu.Placement{})
	none := []v1alpha1.GPURule(nil)
	tests := map[string]struct {
		// before is what happens while the GPU is dynamic and a claim has a MIG device of it.
		before func(w *world)
		rules  []v1alpha1.GPURule
		label  string
		// wants are the wanted layouts afterwards, and on is the MIG mode of GPU-0.
		wants []string
		on    bool
	}{
		"the rule is removed":        {rules: none, wants: []string{"GPU-0 " + "the end of dynamicMIG, for which it was turned on"}},
		"the GPU goes to the plugin": {rules: []v1alpha1.GPURule{{ResourceName: "example.com/gpu"}}, wants: []string{"GPU-0 the end of dynamicMIG, for which it was turned on"}},
		"the GPU is excluded":        {rules: []v1alpha1.GPURule{{Exclude: true}}, on: true},
		"a rule has a layout": {
			rules: []v1alpha1.GPURule{{Select: v1alpha1.GPUSelector{Index: []int{0}}, MIG: &v1alpha1.MIGSettings{Devices: map[string]int{"1g.10gb": 7}}}},
			wants: []string{"GPU-0 gpus[0].mig of the configuration"}, on: true,
		},
		"a rule has an unknown layout": {rules: []v1alpha1.GPURule{{MIG: &v1alpha1.MIGSettings{Layout: "none"}}}, on: true},
		"a layout of the label": {rules: none, label: "all-1g.10gb", on: true,
			wants: []string{"GPU-0 layout all-1g.10gb of label nvidia.com/mig.config", "GPU-1 layout all-1g.10gb of label nvidia.com/mig.config"}},
		"the agent starts again": {before: func(w *world) { w.renew() }, rules: none, wants: []string{"GPU-0 the end of dynamicMIG, for which it was turned on"}},
		"another boot": {before: func(w *world) {
			w.renew()
			w.deps.Modes.deps.BootID = "next"
			w.deps.Modes.load()
		}, rules: none, on: true},
		"a claim had the whole GPU after it": {before: func(w *world) {
			w.held = append(w.held[:0:0], holds(gpu.HolderClaim, gpu.DeviceKey{GPU: "GPU-0"}, "", gpu.Placement{}))
			w.attempt(t)
			w.held = nil
			w.attempt(t)
		}, rules: none},
		"an administrator has turned it on": {before: func(w *world) {
			w.held = append(w.held[:0:0], holds(gpu.HolderClaim, gpu.DeviceKey{GPU: "GPU-0"}, "", gpu.Placement{}))
			w.attempt(t)
			w.held = nil
			w.attempt(t)
			w.scan(func(s *gpu.Snapshot) { s.GPUs[0].MIG.Enabled = true })
		}, rules: none, on: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.reconfigure(dynamicRule(0))
			w.attempt(t)
			w.hold(claimed)
			w.attempt(t)
			if !w.snapshot.GPUs[0].MIG.Enabled || !cmp.Equal(w.deps.Modes.get(), []gpu.UUID{"GPU-0"}) {
				t.Fatalf("the claim did not turn MIG on, or the file does not have it: %v", w.deps.Modes.get())
			}
			if test.before != nil {
				test.before(w)
			}
			w.hold()
			w.attempt(t)
			w.relabel(test.label)
			w.reconfigure(test.rules...)
			var wants []string
			for _, want := range w.wanted().Wants {
				wants = append(wants, string(want.UUID)+" "+want.Source)
			}
			if diff := cmp.Diff(test.wants, wants); diff != "" {
				t.Errorf("wants (-want +got):\n%s", diff)
			}
			w.attempt(t)
			w.attempt(t)
			if got := w.snapshot.GPUs[0].MIG.Enabled; got != test.on {
				t.Errorf("MIG of GPU-0 is on: %v, want %v", got, test.on)
			}
			if !test.on && len(w.wanted().Wants)+len(w.deps.Modes.get()) > 0 {
				t.Errorf("the agent keeps %v for %v", w.wanted().Wants, w.deps.Modes.get())
			}
		})
	}
}

// TestModeKilledAtEachStep ends the agent at each step of the first write, before MIG is turned on, and of the last one, after it was
// turned off: no mode that it has turned on stays on.
func TestModeKilledAtEachStep(t *testing.T) {
	died := errors.New("died")
	for _, at := range []statefile.Step{statefile.StepCreated, statefile.StepTorn, statefile.StepWritten, statefile.StepRenamed} {
		for _, write := range []string{"first", "last"} {
			t.Run(string(at)+" "+write, func(t *testing.T) {
				w := newWorld(t)
				w.reconfigure(dynamicRule(0))
				w.hold(holds(gpu.HolderClaim, claimOf(), "1g.10gb", gpu.Placement{}))
				kill := func() {
					w.fault = func(step statefile.Step) error {
						if step == at {
							return died
						}
						return nil
					}
				}
				if write == "first" {
					kill()
					w.deps.Modes.take(true)
					w.deps.Modes.turnOn(w.snapshot, w.wanted().Claimed(w.held)) // The agent ends before the mode is turned on.
					w.fault = nil
					w.renew()
				}
				w.attempt(t)
				w.hold()
				w.reconfigure()
				if write == "last" {
					kill()
				}
				w.attempt(t)
				w.fault = nil
				w.renew()
				w.attempt(t)
				if w.snapshot.GPUs[0].MIG.Enabled || len(w.deps.Modes.get()) > 0 {
					t.Errorf("MIG is on: %v; the file has %v", w.snapshot.GPUs[0].MIG.Enabled, w.deps.Modes.get())
				}
			})
		}
	}
}

// TestModesFile: a failed write is reported and repeated, a damaged file is reported, and an agent that does not write the ledger writes
// nothing.
func TestModesFile(t *testing.T) {
	w := newWorld(t)
	w.reconfigure(dynamicRule(0))
	w.hold(holds(gpu.HolderClaim, claimOf(), "1g.10gb", gpu.Placement{}))
	path := filepath.Join(w.dir, ModesFile)
	w.writes = false
	w.attempt(t)
	if _, err := os.Stat(path); err == nil {
		t.Error("a follower wrote the file")
	}
	w.writes = true
	w.scan(func(s *gpu.Snapshot) { s.GPUs[0].MIG.Enabled = false })
	w.fault = func(statefile.Step) error { return errors.New("no space left on device") }
	if w.attempt(t); w.deps.Modes.isSaved() {
		t.Error("the file counts as written, so no attempt follows")
	}
	if codes := w.reports(modesSource); !slices.Equal(codes, []string{"STATE_UNWRITABLE"}) || !w.snapshot.GPUs[0].MIG.Enabled {
		t.Errorf("a disk that is full: %v; MIG is on: %v", codes, w.snapshot.GPUs[0].MIG.Enabled)
	}
	w.fault = nil
	w.attempt(t)
	if codes := w.reports(modesSource); len(codes) > 0 {
		t.Errorf("after the write: %v", codes)
	}
	// The agent before this one has written after this one has read.
	next := newWorld(t)
	next.dir = w.dir
	next.renew()
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	next.attempt(t)
	if codes := next.reports(modesSource); !slices.Equal(codes, []string{"STATE_DAMAGED"}) {
		t.Errorf("a damaged file: %v", codes)
	}
	if err := RemoveModes(w.dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(w.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
