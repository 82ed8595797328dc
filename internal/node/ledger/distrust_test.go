package ledger

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestDistrustOutlastsALookUnderWay checks that a view that was begun before a Distrust does not end it, although its
// checkpoint could be read.
func TestDistrustOutlastsALookUnderWay(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	fill := func(view NodeView) NodeView {
		view.Assignments = []Assignment{{PodUID: "P", Container: "c", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{key("G0")}}}
		view.Containers = []Container{{ID: "c1", PodUID: "P", Name: "c", Keys: []gpu.DeviceKey{key("G0")}}}
		return view
	}
	kind := func() gpu.HolderKind { return l.Holdings()[0].Holder.Kind }
	l.Reconcile(fill(l.NewView()))
	if kind() != gpu.HolderPod {
		t.Fatalf("a listed device with a process is held by a %s", kind())
	}
	underWay := fill(l.NewView())
	l.Distrust()
	if l.Reconcile(underWay); kind() != gpu.HolderOrphan {
		t.Errorf("a look from before the restart of the kubelet made the holder a %s", kind())
	}
	if l.Reconcile(fill(l.NewView())); kind() != gpu.HolderPod {
		t.Errorf("a look from after the restart of the kubelet left the holder a %s", kind())
	}
}

// TestReadsPerCall counts what a call reads: nothing for devices without a holding, with the checkpoint known and unknown.
func TestReadsPerCall(t *testing.T) {
	type reads struct {
		looks       int
		checkpoints int
	}
	unknown := errors.New("no checkpoint")
	tests := map[string]struct {
		before func(l *Ledger, clock *clocktesting.FakePassiveClock)
		want   reads
	}{
		"never looked": {func(*Ledger, *clocktesting.FakePassiveClock) {}, reads{1, 1}},
		"looked, checkpoint known": {func(l *Ledger, _ *clocktesting.FakePassiveClock) {
			l.Reconcile(l.NewView())
		}, reads{}},
		"looked long ago, checkpoint known": {func(l *Ledger, clock *clocktesting.FakePassiveClock) {
			l.Reconcile(l.NewView())
			clock.SetTime(start.Add(time.Hour))
		}, reads{}},
		"looked, checkpoint unknown": {func(l *Ledger, clock *clocktesting.FakePassiveClock) {
			view := l.NewView()
			view.CheckpointErr = unknown
			l.Reconcile(view)
			clock.SetTime(start.Add(MaxLookAge))
		}, reads{}},
		"looked too long ago, checkpoint unknown": {func(l *Ledger, clock *clocktesting.FakePassiveClock) {
			view := l.NewView()
			view.CheckpointErr = unknown
			l.Reconcile(view)
			clock.SetTime(start.Add(MaxLookAge + 1))
		}, reads{1, 1}},
		"the clock was set back, checkpoint unknown": {func(l *Ledger, clock *clocktesting.FakePassiveClock) {
			view := l.NewView()
			view.CheckpointErr = unknown
			l.Reconcile(view)
			clock.SetTime(start.Add(-time.Hour))
		}, reads{1, 1}},
		"containers unreadable, checkpoint unknown": {func(l *Ledger, _ *clocktesting.FakePassiveClock) {
			view := l.NewView()
			view.CheckpointErr, view.ContainersErr = unknown, errors.New("no cgroups")
			l.Reconcile(view)
		}, reads{1, 1}},
		"looked, then distrusted": {func(l *Ledger, _ *clocktesting.FakePassiveClock) {
			l.Reconcile(l.NewView())
			l.Distrust()
		}, reads{1, 1}},
		"looked before the distrust, reconciled after it": {func(l *Ledger, _ *clocktesting.FakePassiveClock) {
			view := l.NewView()
			l.Distrust()
			l.Reconcile(view)
		}, reads{1, 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got reads
			clock := clocktesting.NewFakePassiveClock(start)
			open := func() *Ledger {
				got = reads{}
				clock.SetTime(start)
				l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) {
					d.Clock = clock
					d.Look = func() ([]Container, error) { got.looks++; return nil, nil }
					d.Assigned = func() ([]Assignment, error) { got.checkpoints++; return nil, unknown }
				})
				tc.before(l, clock)
				return l
			}
			keys := []gpu.DeviceKey{key("G0"), key("G1")}
			l := open()
			if l.Offered("nvidia.com/gpu", keys); got != tc.want {
				t.Errorf("Offered read %+v, want %+v", got, tc.want)
			}
			// What one call has read is not read again by the next.
			if err := l.Acquire(pod, keys); err != nil || got != tc.want {
				t.Errorf("Acquire after Offered: %v, read %+v, want %+v", err, got, tc.want)
			}
			l = open()
			if err := l.Acquire(pod, keys); err != nil || got != tc.want {
				t.Errorf("Acquire: %v, read %+v, want %+v", err, got, tc.want)
			}
		})
	}
}

// TestReadsPerCallOnHeldDevices checks that a device with a holder costs a reading of the pods that can use it, and one
// that was just granted none while the kubelet has not written its checkpoint.
func TestReadsPerCallOnHeldDevices(t *testing.T) {
	var looks int
	var lookedIn [][]string
	stamp := "1"
	facts := map[string]PodFacts{"P": {State: PodEnded}, "Q": {State: PodEnded}}
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) {
		d.Look = func() ([]Container, error) { looks++; return nil, nil }
		d.LookIn = func(pods []string) ([]Container, error) { lookedIn = append(lookedIn, pods); return nil, nil }
		d.Assigned = func() ([]Assignment, error) { return nil, nil }
		d.Stamp = func() string { return stamp }
		d.Pod = func(uid string) PodFacts { return facts[uid] }
	})
	entry := func(pod, device string) Assignment {
		return Assignment{PodUID: pod, Container: "c", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{key(device)}}
	}
	view := l.NewView()
	view.Assignments = []Assignment{entry("P", "G0"), entry("Q", "G1")}
	l.Reconcile(view)

	steps := []struct {
		name  string
		do    func()
		looks int
		in    [][]string
	}{
		{"of a pod that has finished", func() { l.Offered("nvidia.com/gpu", []gpu.DeviceKey{key("G0")}) }, 0, [][]string{{"P"}}},
		{"released by the call before", func() { l.Offered("nvidia.com/gpu", []gpu.DeviceKey{key("G0")}) }, 0, nil},
		{"allocated in place of a pod that has finished", func() {
			if err := l.Acquire(pod, []gpu.DeviceKey{key("G1")}); err != nil {
				t.Error(err)
			}
		}, 0, [][]string{{"Q"}}},
		{"granted, checkpoint not written since", func() { l.Offered("nvidia.com/gpu", []gpu.DeviceKey{key("G1")}) }, 0, nil},
		{"granted, checkpoint written since", func() {
			stamp = "2"
			l.Offered("nvidia.com/gpu", []gpu.DeviceKey{key("G1")})
		}, 1, nil},
		{"granted, not known whether the checkpoint was written", func() {
			stamp = ""
			l.Offered("nvidia.com/gpu", []gpu.DeviceKey{key("G1")})
		}, 1, nil},
	}
	for _, step := range steps {
		looks, lookedIn = 0, nil
		step.do()
		if looks != step.looks || !slices.EqualFunc(lookedIn, step.in, slices.Equal) {
			t.Errorf("%s: %d looks at all pods and at %v, want %d and %v", step.name, looks, lookedIn, step.looks, step.in)
		}
	}
}
