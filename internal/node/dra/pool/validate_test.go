package pool

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// TestValidate breaks one rule of valid slices at a time.
func TestValidate(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	valid := build(t, s, settings(s, upTo(8)...), nil).Slices
	long := strings.Repeat("x", 65)
	type list = []resourceapi.ResourceSlice
	for name, test := range map[string]struct {
		breaks func(list)
		want   []string // parts of the error
	}{
		"devices": {func(l list) {
			for i := range 13 {
				more := l[0].Spec.Devices[0]
				more.Name = fmt.Sprint("more-", i)
				l[0].Spec.Devices = append(l[0].Spec.Devices, more)
			}
		}, []string{"slice 00000-gpu.berth.dev-node-1: 65 devices, at most 64 are allowed"}},
		"counter sets": {func(l list) {
			l[4].Spec.SharedCounters = append(l[4].Spec.SharedCounters, resourceapi.CounterSet{Name: "more", Counters: l[4].Spec.SharedCounters[0].Counters})
		}, []string{"slice 00004-gpu.berth.dev-node-1: 9 counter sets, at most 8"}},
		"counters": {func(l list) {
			for i := range 40 {
				l[4].Spec.SharedCounters[0].Counters[fmt.Sprint("c", i)] = resourceapi.Counter{Value: count(1)}
			}
		}, []string{"counter set gpu-1b4f2394", "50 counters, at most 32"}},
		"an empty set": {func(l list) { l[4].Spec.SharedCounters[0].Counters = nil }, []string{"has no counters"}},
		"two of a set": {func(l list) { l[4].Spec.SharedCounters[0].Name = l[4].Spec.SharedCounters[1].Name }, []string{"two sets of that name"}},
		"both kinds":   {func(l list) { l[4].Spec.Devices = l[3].Spec.Devices[:1] }, []string{"slices of its own"}},
		"device twice": {func(l list) { l[1].Spec.Devices[0].Name = l[0].Spec.Devices[0].Name }, []string{"slice 00001", "slice 00000-gpu.berth.dev-node-1 has a device of that name"}},
		"device name":  {func(l list) { l[0].Spec.Devices[0].Name = "GPU 0" }, []string{`device GPU 0: the name "GPU 0" is invalid`}},
		"long name":    {func(l list) { l[0].Spec.Devices[0].Name = long }, []string{"63"}},
		"driver":       {func(l list) { l[0].Spec.Driver = long }, []string{"driver name"}},
		"pool":         {func(l list) { l[0].Spec.Pool.Name = "" }, []string{"pool name"}},
		"pool's parts": {func(l list) { l[0].Spec.Pool.Name = "node//x" }, []string{"pool name"}},
		"no node":      {func(l list) { l[0].Spec.NodeName = nil }, []string{"no Node"}},
		"slice count":  {func(l list) { l[2].Spec.Pool.ResourceSliceCount = 4 }, []string{"slice 00002", "has 4 slices, and there are 5"}},
		"generation":   {func(l list) { l[0].Spec.Pool.Generation = -1 }, []string{"negative"}},
		"text":         {func(l list) { l[0].Spec.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{StringValue: &long} }, []string{"attribute x: the value has 65 bytes, at most 64"}},
		"version": {func(l list) {
			v := "580.95.05"
			l[0].Spec.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{VersionValue: &v}
		}, []string{"580.95.05", "semantic version"}},
		"no value": {func(l list) { l[0].Spec.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{} }, []string{"one value"}},
		"a list": {func(l list) {
			l[0].Spec.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{IntValues: []int64{1}}
		}, []string{"one value"}},
		"identifier": {func(l list) { l[0].Spec.Devices[0].Attributes["x-y"] = l[0].Spec.Devices[0].Attributes["type"] }, []string{"attribute x-y: the name must be an identifier of at most 32"}},
		"domain":     {func(l list) { l[0].Spec.Devices[0].Capacity["A_B/x"] = resourceapi.DeviceCapacity{Value: count(1)} }, []string{"capacity A_B/x: the domain"}},
		"attributes": {func(l list) {
			for i := range 30 {
				l[0].Spec.Devices[0].Attributes[resourceapi.QualifiedName(fmt.Sprint("x", i))] = l[0].Spec.Devices[0].Attributes["type"]
			}
		}, []string{"attributes and capacities, at most 32"}},
		"taints": {func(l list) { l[0].Spec.Devices[0].Taints = make([]resourceapi.DeviceTaint, 17) }, []string{"17 taints, at most 16", "the effect"}},
		"taint's value": {func(l list) {
			l[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "a/b", Value: "a b", Effect: "None"}}
		}, []string{"taint a/b"}},
		"counter sets 3": {func(l list) {
			l[0].Spec.Devices[0].ConsumesCounters = append(l[0].Spec.Devices[0].ConsumesCounters, l[0].Spec.Devices[26].ConsumesCounters[0], l[1].Spec.Devices[0].ConsumesCounters[0])
		}, []string{"3 counter sets that it takes from, at most 2"}},
		"unknown set":     {func(l list) { l[0].Spec.Devices[0].ConsumesCounters[0].CounterSet = "gone" }, []string{"device gpu-2a5c3378", "counter set gone: the pool has no such set"}},
		"unknown counter": {func(l list) { delete(l[4].Spec.SharedCounters[2].Counters, "memory-slice-0") }, []string{"the set has no counter memory-slice-0"}},
		"takes nothing":   {func(l list) { l[0].Spec.Devices[0].ConsumesCounters[0].Counters = nil }, []string{"takes nothing"}},
		"takes too much": {func(l list) {
			l[0].Spec.Devices[0].ConsumesCounters[0].Counters["compute-slices"] = resourceapi.Counter{Value: count(8)}
		}, []string{"takes 8 of the counter compute-slices, which has 7"}},
	} {
		t.Run(name, func(t *testing.T) {
			made := make(list, len(valid))
			for i := range valid {
				made[i] = *valid[i].DeepCopy()
			}
			test.breaks(made)
			err := Validate(made)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q:\n%v", part, err)
				}
			}
		})
	}
}

// TestTaints lists the taint of each state.
func TestTaints(t *testing.T) {
	for name, test := range map[string]struct {
		state gpu.State
		evict gpu.State
		want  string
	}{
		"healthy":                    {},
		"healthy, by name":           {state: gpu.Healthy, evict: gpu.Healthy},
		"degraded":                   {state: gpu.Degraded, want: "Degraded None"},
		"degraded is never evicted":  {state: gpu.Degraded, evict: gpu.Degraded, want: "Degraded None"},
		"draining":                   {state: gpu.Draining, want: "Draining NoSchedule"},
		"draining is never evicted":  {state: gpu.Draining, evict: gpu.Healthy, want: "Draining NoSchedule"},
		"unhealthy":                  {state: gpu.Unhealthy, want: "Unhealthy NoSchedule"},
		"needs reset":                {state: gpu.NeedsReset, want: "NeedsReset NoSchedule"},
		"gone":                       {state: gpu.Gone, want: "Gone NoSchedule"},
		"evicted":                    {state: gpu.NeedsReset, evict: gpu.NeedsReset, want: "NeedsReset NoExecute"},
		"worse than what is evicted": {state: gpu.Gone, evict: gpu.NeedsReset, want: "Gone NoExecute"},
		"better":                     {state: gpu.Unhealthy, evict: gpu.NeedsReset, want: "Unhealthy NoSchedule"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Settings{EvictFrom: test.evict}
			got := ""
			for _, taint := range s.taints(gpu.Health{State: test.state}) {
				if taint.Key != "gpu.berth.dev/health" || taint.TimeAdded != nil {
					t.Errorf("taint %+v", taint)
				}
				got += fmt.Sprintf("%s %s", taint.Value, taint.Effect)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
