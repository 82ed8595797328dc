package healthsync_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// TestSummarize checks that the condition is Draining while nothing is worse than that, so that a GPU that waits for
// its pods can be distinguished from one on which pods fail.
func TestSummarize(t *testing.T) {
	tests := map[string]struct {
		states  []gpu.State
		want    nodeapi.NodeCondition
		tainted bool
	}{
		"no GPU":  {nil, nodeapi.NodeCondition{OK: true, Reason: "Healthy", Message: "every GPU is healthy"}, false},
		"healthy": {[]gpu.State{gpu.Healthy}, nodeapi.NodeCondition{OK: true, Reason: "Healthy", Message: "every GPU is healthy"}, false},
		"degraded": {[]gpu.State{gpu.Degraded, gpu.Healthy}, nodeapi.NodeCondition{OK: true, Reason: "Healthy",
			Message: "a is Degraded"}, false},
		"draining": {[]gpu.State{gpu.Healthy, gpu.Draining}, nodeapi.NodeCondition{Reason: "Draining", Message: "b is Draining"}, false},
		"degraded and draining": {[]gpu.State{gpu.Degraded, gpu.Draining},
			nodeapi.NodeCondition{Reason: "Draining", Message: "a is Degraded; b is Draining"}, false},
		"draining and unhealthy": {[]gpu.State{gpu.Draining, gpu.Unhealthy},
			nodeapi.NodeCondition{Reason: "Unhealthy", Message: "a is Draining; b is Unhealthy"}, true},
		"gone": {[]gpu.State{gpu.Gone, gpu.Draining}, nodeapi.NodeCondition{Reason: "Unhealthy",
			Message: "a is Gone; b is Draining"}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var devices []healthsync.Device
			for i, state := range tc.states {
				devices = append(devices, healthsync.Device{Name: string(rune('a' + i)), State: state})
			}
			got, tainted := healthsync.Summarize(devices)
			if diff := cmp.Diff(tc.want, got); diff != "" || tainted != tc.tainted {
				t.Errorf("taint %v, want %v; condition (-want +got):\n%s", tainted, tc.tainted, diff)
			}
		})
	}
}

// world is an inventory with the output of the actor.
type world struct {
	snapshot gpu.Snapshot
	changed  signal.Broadcast

	events     []nodeapi.Event
	conditions []nodeapi.NodeCondition
	taints     []bool
}

func (w *world) Current() *gpu.Snapshot          { return &w.snapshot }
func (w *world) Subscribe() *signal.Subscription { return w.changed.Subscribe() }

// running runs body beside an actor on a node with two GPUs, the second of which has a MIG device.
func running(t *testing.T, taint bool, body func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{snapshot: gpu.Snapshot{GPUs: []gpu.GPU{
			{UUID: "GPU-a", Index: 0},
			{UUID: "GPU-b", Index: 1, MIG: gpu.MIG{Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-c",
				Index: 2, Profile: "1g.5gb"}}}}},
		}}}
		r := healthsync.New(healthsync.Deps{
			Hardware: w, Holders: func(key gpu.DeviceKey) []string { return []string{fmt.Sprintf("holder of %s/%s", key.GPU, key.MIG)} },
			Event:     func(e nodeapi.Event) { w.events = append(w.events, e) },
			Condition: func(c nodeapi.NodeCondition) { w.conditions = append(w.conditions, c) },
			Taint:     func(t bool) { w.taints = append(w.taints, t) }, TaintUnhealthy: taint,
		})
		go r.Run(t.Context())
		synctest.Wait()
		body(t, w)
	})
}

// step applies a change and returns the resulting events.
func (w *world) step(change func()) []nodeapi.Event {
	w.events, w.conditions, w.taints = nil, nil, nil
	change()
	w.changed.Set()
	synctest.Wait()
	return w.events
}

func TestEvents(t *testing.T) {
	running(t, true, func(t *testing.T, w *world) {
		if len(w.events) != 0 {
			t.Errorf("healthy devices made %d events at the start", len(w.events))
		}
		first, second := &w.snapshot.GPUs[0], &w.snapshot.GPUs[1]
		sick := gpu.Health{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "XID_79", Message: "fell off the bus"},
			{Code: "B", Message: "x"}}}
		steps := []struct {
			name   string
			change func()
			want   []nodeapi.Event
		}{
			{"a fault", func() { first.Health = sick }, []nodeapi.Event{
				nodeapi.GPUNotHealthy("GPU 0 (GPU-a)", gpu.Unhealthy, "XID_79: fell off the bus; B: x", []string{"holder of GPU-a/"})}},
			{"the same again", func() {}, nil},
			{"another cause of the same state", func() { first.Health.Causes = nil }, nil},
			{"a MIG device", func() { second.MIG.Devices[0].Health.State = gpu.Draining }, []nodeapi.Event{
				nodeapi.GPUNotHealthy("MIG device 1:2 (1g.5gb, MIG-c)", gpu.Draining, "", []string{"holder of GPU-b/MIG-c"})}},
			{"worse, and two at once", func() { first.Health.State, second.Health.State = gpu.Gone, gpu.Degraded }, []nodeapi.Event{
				nodeapi.GPUNotHealthy("GPU 0 (GPU-a)", gpu.Gone, "", []string{"holder of GPU-a/"}),
				nodeapi.GPUNotHealthy("GPU 1 (GPU-b)", gpu.Degraded, "", []string{"holder of GPU-b/"})}},
			{"recovery", func() { first.Health.State = gpu.Healthy }, []nodeapi.Event{nodeapi.GPUHealthy("GPU 0 (GPU-a)")}},
			{"a GPU that is removed", func() { w.snapshot.GPUs = w.snapshot.GPUs[:1] }, nil},
		}
		for _, step := range steps {
			if diff := cmp.Diff(step.want, w.step(step.change), cmpopts.EquateComparable(nodeapi.Event{})); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
			}
		}
	})
}

// TestVendorWithoutDriver checks that the lost GPUs of a vendor whose driver does not respond are reported, and change
// neither the status of the condition nor the taint while another vendor's driver responds.
func TestVendorWithoutDriver(t *testing.T) {
	running(t, true, func(t *testing.T, w *world) {
		driver := gpu.Driver{Version: "1"}
		w.snapshot.GPUs[0].Vendor, w.snapshot.GPUs[1].Vendor = "a", "b"
		w.snapshot.GPUs[0].Health.State = gpu.Gone
		const lost = "GPU 0 (GPU-a) is Gone"
		tests := map[string]struct {
			vendors []gpu.VendorState
			want    nodeapi.NodeCondition
			tainted bool
		}{
			"both drivers answer": {[]gpu.VendorState{{Name: "a", Driver: driver}, {Name: "b", Driver: driver}},
				nodeapi.NodeCondition{Reason: "Unhealthy", Message: lost}, true},
			"the other's answers": {[]gpu.VendorState{{Name: "a"}, {Name: "b", Driver: driver}},
				nodeapi.NodeCondition{OK: true, Reason: "Healthy", Message: lost}, false},
			"no driver answers": {[]gpu.VendorState{{Name: "a"}, {Name: "b"}},
				nodeapi.NodeCondition{Reason: "Unhealthy", Message: lost}, true},
		}
		for name, tc := range tests {
			w.step(func() { w.snapshot.Vendors = tc.vendors })
			if diff := cmp.Diff([]nodeapi.NodeCondition{tc.want}, w.conditions); diff != "" {
				t.Errorf("%s: conditions (-want +got):\n%s", name, diff)
			}
			if diff := cmp.Diff([]bool{tc.tainted}, w.taints); diff != "" {
				t.Errorf("%s: taints (-want +got):\n%s", name, diff)
			}
		}
	})
}

// TestOneConditionPerChange counts: one change of the inventory leads to one condition and one taint, and no change to
// none.
func TestOneConditionPerChange(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		t.Run(fmt.Sprintf("taint wanted %v", wanted), func(t *testing.T) {
			running(t, wanted, func(t *testing.T, w *world) {
				w.step(func() { w.snapshot.GPUs[1].Health.State = gpu.Unhealthy })
				time.Sleep(time.Hour)
				synctest.Wait()
				want := []nodeapi.NodeCondition{{Reason: "Unhealthy", Message: "GPU 1 (GPU-b) is Unhealthy"}}
				if diff := cmp.Diff(want, w.conditions); diff != "" {
					t.Errorf("conditions (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff([]bool{wanted}, w.taints); diff != "" {
					t.Errorf("taints (-want +got):\n%s", diff)
				}
			})
		})
	}
}
