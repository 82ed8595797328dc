package pool

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// unlink removes a GPU from a snapshot.
func unlink(s *gpu.Snapshot, at int) *gpu.Snapshot {
	made := clone(s)
	made.GPUs = slices.Delete(made.GPUs, at, at+1)
	made.Topology = gpu.NewTopology(len(made.GPUs))
	for i := range made.GPUs {
		for j := range made.GPUs {
			from := func(k int) int {
				if k >= at {
					return k + 1
				}
				return k
			}
			made.Topology[i][j] = s.Topology[from(i)][from(j)]
		}
	}
	return made
}

// lose makes a GPU one that does not respond: it has no links.
func lose(s *gpu.Snapshot, at int) {
	s.GPUs[at].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST"}}}
	for i := range s.Topology {
		if i != at {
			s.Topology.Set(i, at, gpu.Link{Path: gpu.PathSystem})
		}
	}
}

// TestTouchedSlices changes one thing on a node of eight GPUs and counts the slices that an update writes. With one, the pool keeps
// its generation.
func TestTouchedSlices(t *testing.T) {
	h100, a100 := nvidiatest.New(t, "h100x8").Scan(), nvidiatest.New(t, "a100x8-40g").Scan()
	type state struct {
		s    *gpu.Snapshot
		with Settings
	}
	use := func(at int, dynamic bool) func(*state) {
		return func(c *state) { c.with.GPUs[c.s.GPUs[at].UUID] = Use{DynamicMIG: dynamic} }
	}
	leave := func(at int) func(*state) { return func(c *state) { delete(c.with.GPUs, c.s.GPUs[at].UUID) } }
	for name, test := range map[string]struct {
		snapshot *gpu.Snapshot
		dynamic  []int
		change   func(c *state)
		// back is the number of slices that are written when the change is undone, where it differs.
		want       int
		back       int
		generation bool
	}{
		"nothing":                            {snapshot: h100, dynamic: upTo(8), change: func(*state) {}},
		"a fault, whole GPUs":                {snapshot: h100, change: func(c *state) { c.s.GPUs[3].Health.State = gpu.NeedsReset }, want: 1},
		"a fault, dynamic GPUs":              {snapshot: h100, dynamic: upTo(8), change: func(c *state) { c.s.GPUs[3].Health.State = gpu.NeedsReset }, want: 1},
		"degraded, whole GPUs":               {snapshot: h100, change: func(c *state) { c.s.GPUs[3].Health.State = gpu.Degraded }, want: 1},
		"degraded, in the last slice":        {snapshot: h100, dynamic: upTo(8), change: func(c *state) { c.s.GPUs[6].Health.State = gpu.Degraded }, want: 1},
		"degraded, to another slice":         {snapshot: h100, dynamic: upTo(8), change: func(c *state) { c.s.GPUs[3].Health.State = gpu.Degraded }, want: 5, generation: true},
		"a GPU is lost, dynamic":             {snapshot: h100, dynamic: upTo(8), change: func(c *state) { lose(c.s, 5) }, want: 1},
		"the island's first is lost":         {snapshot: h100, dynamic: upTo(8), change: func(c *state) { lose(c.s, 0) }, want: 1},
		"a GPU is removed, whole":            {snapshot: h100, change: func(c *state) { c.s = unlink(c.s, 0) }, want: 1},
		"a GPU is removed, dynamic":          {snapshot: h100, dynamic: upTo(8), change: func(c *state) { c.s = unlink(c.s, 2) }, want: 1},
		"the island's first is removed":      {snapshot: h100, dynamic: upTo(8), change: func(c *state) { c.s = unlink(c.s, 0) }, want: 1},
		"a GPU goes to the device plugin":    {snapshot: h100, dynamic: upTo(8), change: leave(4), want: 1},
		"the only one goes":                  {snapshot: h100, dynamic: []int{7}, change: leave(7), want: 2}, // an update, and the deletion of the counters
		"a GPU becomes dynamic, with others": {snapshot: h100, dynamic: []int{5, 6, 7}, change: use(4, true), want: 3, generation: true},
		"the last GPU becomes dynamic":       {snapshot: h100, change: use(7, true), want: 2, generation: true},
		"MIG is turned on, which needs a reset": {snapshot: a100, dynamic: upTo(8), change: func(c *state) {
			c.s.GPUs[2].MIG.Enabled = true
		}, want: 1},
		"a driver upgrade": {snapshot: h100, dynamic: upTo(8), change: func(c *state) {
			for i := range c.s.GPUs {
				c.s.GPUs[i].Driver.Version = "595.10"
			}
		}, want: 5, generation: true},
	} {
		t.Run(name, func(t *testing.T) {
			start := settings(test.snapshot, test.dynamic...)
			before := build(t, test.snapshot, start, nil)
			c := state{clone(test.snapshot), settings(test.snapshot, test.dynamic...)}
			test.change(&c)
			after := build(t, c.s, c.with, before.Slices)
			changes := Compare(before.Slices, after.Slices)
			if got := changes.Touched(); got != test.want || changes.NewGeneration != test.generation {
				t.Errorf("%d slices are touched, want %d: %+v", got, test.want, changes)
			}
			again := build(t, test.snapshot, start, after.Slices)
			changes = Compare(after.Slices, again.Slices)
			if want := max(test.want, test.back); changes.Touched() > want {
				t.Errorf("%d slices are touched when it ends, want at most %d: %+v", changes.Touched(), want, changes)
			}
			sameContent(t, before, again)
		})
	}
}

// TestDroppedCounters publishes to an API server that drops counters. What it stores then is empty slices, and devices that take
// nothing; the whole GPUs that are published instead are in one slice.
func TestDroppedCounters(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	with := settings(s, upTo(8)...)
	stored := build(t, s, with, nil).Slices
	for i := range stored {
		stored[i].Spec.SharedCounters = nil
		for k := range stored[i].Spec.Devices {
			stored[i].Spec.Devices[k].ConsumesCounters = nil
		}
	}
	with.WholeOnly = true
	result := build(t, s, with, stored)
	if len(result.Slices) != 1 || len(result.Devices) != 8 || len(result.Refused) != 8 {
		t.Errorf("%d slices, %d devices, %d refused", len(result.Slices), len(result.Devices), len(result.Refused))
	}
}

// TestUnusedCounterSets has GPUs that leave one after another: their counter sets stay, until a change needs a new generation anyway.
func TestUnusedCounterSets(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	with := settings(s, upTo(8)...)
	before := build(t, s, with, nil)
	for i := range 3 {
		delete(with.GPUs, s.GPUs[2*i].UUID)
		after := build(t, s, with, before.Slices)
		if changes := Compare(before.Slices, after.Slices); changes.Touched() != 1 || changes.NewGeneration {
			t.Errorf("GPU %d leaves: %+v", 2*i, changes)
		}
		before = after
	}
	if got := sizes(before); !slices.Equal(got, []int{26, 0, 26, 0, 26, 0, 52, 0, 0, 8}) {
		t.Errorf("the sizes of the slices are %v", got)
	}
	for i := range s.GPUs {
		s.GPUs[i].Driver.Version = "595.10"
	}
	if got := sizes(build(t, s, with, before.Slices)); !slices.Equal(got, []int{52, 0, 52, 0, 26, 0, 0, 5}) {
		t.Errorf("the sizes of the slices after a driver upgrade are %v", got)
	}
}

// sameContent compares the devices of two results in their order.
func sameContent(t *testing.T, a, b Result) {
	t.Helper()
	names := func(r Result) (list []string) {
		for _, slice := range r.Slices {
			for _, device := range slice.Spec.Devices {
				list = append(list, device.Name)
			}
		}
		return list
	}
	if x, y := names(a), names(b); !slices.Equal(x, y) {
		t.Errorf("the devices are\n%v, want\n%v", y, x)
	}
}

// TestTaintTouchesEveryDeviceOfTheGPU proves that a fault of a dynamic GPU is one slice's change because all of its devices are there.
func TestTaintTouchesEveryDeviceOfTheGPU(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	s.GPUs[6].Health.State = gpu.Unhealthy
	tainted := 0
	result := build(t, s, settings(s, upTo(8)...), nil)
	for _, slice := range result.Slices {
		for _, device := range slice.Spec.Devices {
			if len(device.Taints) > 0 {
				tainted++
			}
			if faulty := result.Devices[device.Name].GPU == s.GPUs[6].UUID; faulty != (len(device.Taints) > 0) {
				t.Errorf("%s has the taints %v", device.Name, device.Taints)
			}
		}
	}
	if tainted != 26 {
		t.Errorf("%d devices are tainted, want the whole GPU and 25 placements", tainted)
	}
}

// TestCompare looks at slices that are published by others, are old, or differ in what the API server sets.
func TestCompare(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	s.GPUs[1].Health.State = gpu.Draining
	with := settings(s, upTo(8)...)
	want := build(t, s, with, nil).Slices
	if got := Compare(nil, want); len(got.Create) != 5 || got.Touched() != 5 || !got.NewGeneration {
		t.Errorf("a first publication: %+v", got)
	}
	published := func() []resourceapi.ResourceSlice {
		list := make([]resourceapi.ResourceSlice, len(want))
		for i := range want {
			list[i] = *want[i].DeepCopy()
			list[i].Name = fmt.Sprintf("%05x-gpu.berth.dev-node-1-x%d", i, 9-i)
			list[i].Spec.Pool.Generation = 4
			for k := range list[i].Spec.Devices {
				for n := range list[i].Spec.Devices[k].Taints {
					list[i].Spec.Devices[k].Taints[n].TimeAdded = &metav1.Time{}
				}
			}
		}
		slices.Reverse(list)
		return list
	}
	if got := Compare(published(), want); got.Touched() != 0 || got.NewGeneration {
		t.Errorf("published slices: %+v", got)
	}
	foreign := published()[0]
	foreign.Name, foreign.Spec.Driver = "00009-other", "gpu.example.com"
	old := published()[4]
	old.Name, old.Spec.Pool.Generation = "00000-old", 3
	got := Compare(append(published(), foreign, old), want)
	if len(got.Delete) != 1 || got.Delete[0] != "00000-old" || got.Touched() != 1 {
		t.Errorf("a slice of another driver and an old one: %+v", got)
	}
	if got := Compare(published()[1:], want); !got.NewGeneration || got.Touched() != 5 {
		t.Errorf("a slice is missing: %+v", got)
	}
	with.Generation = 9
	if got := Compare(published(), Build(s, with, published()).Slices); !got.NewGeneration || got.Touched() != 5 {
		t.Errorf("a newer generation is wanted: %+v", got)
	}
	if got := Compare(published(), nil); got.Touched() != 0 {
		t.Errorf("nothing to compare with: %+v", got)
	}
}
