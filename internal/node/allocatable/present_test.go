package allocatable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// injector is a fake of the injection.
type injector struct {
	// unknown is true while the files that the vendor nvidia needs were not read.
	unknown bool
	// missing are devices that cannot be injected, notReady those that containers cannot use.
	missing  map[gpu.UUID]bool
	notReady map[gpu.UUID]string
}

func (i *injector) Injectable(vendor string, key gpu.DeviceKey) bool {
	return !i.missing[key.Device()] && !(i.unknown && vendor != "other")
}
func (i *injector) Injection(key gpu.DeviceKey, use offer.Use) (offer.Injection, string) {
	if use.Mode == offer.Whole {
		return offer.Injection{}, ""
	}
	return offer.Injection{Envs: map[string]string{"SHARED": string(key.GPU)}}, i.notReady[key.GPU]
}

// list prints the kubelet's view, one device per line.
func list(offers []offer.Offer) string {
	var lines []string
	for _, o := range offers {
		for _, device := range o.Devices {
			line := fmt.Sprintf("%s %s %s", o.Resource, device.ID, device.Health)
			if device.Reason != "" {
				line += " (" + device.Reason + ")"
			}
			if device.Injection.Envs != nil {
				line += " with " + device.Injection.Envs["SHARED"]
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// TestPresent: what can be allocated follows the snapshot and the injector at once, without a settlement.
func TestPresent(t *testing.T) {
	tests := map[string]struct {
		settings offer.Settings
		change   func(*world)
		// devices is how many devices there are, want the kubelet's view of them.
		devices int
		want    string
	}{
		"whole GPUs": {devices: 2, want: "nvidia.com/gpu GPU-a Healthy\nnvidia.com/gpu GPU-b Healthy"},
		"replicas": {
			settings: share(offer.TimeSlicing, 2), devices: 2,
			want: "nvidia.com/gpu GPU-a Healthy\nnvidia.com/shared GPU-b::0 Healthy with GPU-b\nnvidia.com/shared GPU-b::1 Healthy with GPU-b",
		},
		"the files of the host were not read": {change: func(w *world) { w.injector.unknown = true }, devices: 2},
		"another vendor that needs none of them": {
			change: func(w *world) {
				w.injector.unknown = true
				w.snapshot.GPUs[1].Vendor = "other"
			}, devices: 2,
			want: "nvidia.com/gpu GPU-b Healthy",
		},
		"a GPU that cannot be injected": {
			change: func(w *world) { w.injector.missing = map[gpu.UUID]bool{"GPU-a": true} }, devices: 2,
			want: "nvidia.com/gpu GPU-b Healthy",
		},
		"replicas that are not ready": {
			settings: share(offer.MPS, 1), devices: 2,
			change: func(w *world) { w.injector.notReady = map[gpu.UUID]string{"GPU-b": "no MPS daemon"} },
			want:   "nvidia.com/gpu GPU-a Healthy\nnvidia.com/shared GPU-b::0 Unhealthy (no MPS daemon) with GPU-b",
		},
		"replicas that are not ready, of a GPU that is lost": {
			settings: share(offer.MPS, 1), devices: 2,
			change: func(w *world) {
				w.injector.notReady = map[gpu.UUID]string{"GPU-b": "no MPS daemon"}
				w.snapshot.GPUs[1].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST", Since: time.Unix(1, 0)}}}
			},
			want: "nvidia.com/gpu GPU-a Healthy\nnvidia.com/shared GPU-b::0 Unhealthy (GPU_LOST) with GPU-b",
		},
		"a degraded GPU": {
			change: func(w *world) {
				w.snapshot.GPUs[0].Health = gpu.Health{State: gpu.Degraded, Causes: []gpu.Cause{{Code: "NVLINK_ERRORS"}}}
			}, devices: 2,
			want: "nvidia.com/gpu GPU-a Degraded (NVLINK_ERRORS)\nnvidia.com/gpu GPU-b Healthy",
		},
		"a GPU that drains": {
			change: func(w *world) {
				w.snapshot.GPUs[0].Health = gpu.Health{State: gpu.Draining, Causes: []gpu.Cause{{Code: "ROW_REMAP_PENDING"}}}
			}, devices: 2,
			want: "nvidia.com/gpu GPU-a Draining (ROW_REMAP_PENDING)\nnvidia.com/gpu GPU-b Healthy",
		},
		"no GPU": {change: func(w *world) { w.snapshot = &gpu.Snapshot{} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings = tc.settings
			d := w.open()
			d.Begin()
			w.settlements = 0
			if tc.change != nil {
				tc.change(w)
			}
			devices := d.Current()
			if len(devices) != tc.devices || w.settlements != 0 {
				t.Errorf("%d devices after %d settlements, want %d after none", len(devices), w.settlements, tc.devices)
			}
			if diff := cmp.Diff(tc.want, list(offer.List(devices))); diff != "" {
				t.Errorf("the kubelet's view (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInjectionChanged: those that inject are woken, those that depend on the use are not.
func TestInjectionChanged(t *testing.T) {
	d := newWorld(t).open()
	present, use := d.Subscribe(), d.SubscribeUse()
	defer present.Close()
	defer use.Close()
	<-present.C()
	<-use.C()
	d.InjectionChanged()
	if len(present.C()) != 1 || len(use.C()) != 0 {
		t.Errorf("%d and %d signals, want 1 and 0", len(present.C()), len(use.C()))
	}
}

// TestSettled: a settlement is signalled once whatever it follows from, and one for the same snapshot and configuration only when the
// use has changed.
func TestSettled(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	d.Begin()
	settled, use := d.SubscribeSettled(), d.SubscribeUse()
	defer settled.Close()
	defer use.Close()
	<-settled.C()
	<-use.C()
	rescan := func() {
		next := *w.snapshot
		w.snapshot = &next
	}
	edit := func() {
		w.settings = share(offer.TimeSlicing, 2)
		w.version++
	}
	steps := []struct {
		event   string
		do      func()
		settled int
		use     int
	}{
		{"nothing", func() {}, 0, 0},
		{"a scan that the use does not follow", rescan, 1, 0},
		{"an edit", edit, 1, 1},
		{"a MIG change that is due", func() { w.changing = map[gpu.UUID]string{"GPU-a": "it changes"} }, 1, 1},
		{"a scan by which the use changes", func() { rescan(); w.changing = nil }, 1, 1},
	}
	for _, step := range steps {
		w.set(step.do)
		d.Settle()
		d.Settle()
		if got, use := take(settled), take(use); got != step.settled || use != step.use {
			t.Errorf("%s: %d signals of a settlement and %d of the use, want %d and %d", step.event, got, use, step.settled, step.use)
		}
	}
}

// take returns how many signals are pending, and takes them.
func take(s *signal.Subscription) (count int) {
	for ; len(s.C()) > 0; count++ {
		<-s.C()
	}
	return count
}

func TestKeysOn(t *testing.T) {
	w := newWorld(t)
	w.settings = share(offer.TimeSlicing, 2)
	d := w.open()
	d.Begin()
	for id, want := range map[gpu.UUID][]gpu.DeviceKey{
		"GPU-a": {{GPU: "GPU-a"}}, "GPU-b": {{GPU: "GPU-b", Share: 1}, {GPU: "GPU-b", Share: 2}}, "GPU-c": nil,
	} {
		if diff := cmp.Diff(want, d.KeysOn(id)); diff != "" {
			t.Errorf("keys on %s (-want +got):\n%s", id, diff)
		}
	}
}
