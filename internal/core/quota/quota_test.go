package quota_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/quota"
)

const (
	a100 = "NVIDIA A100-SXM4-40GB"
	h100 = "NVIDIA H100 80GB HBM3"
)

func TestMake(t *testing.T) {
	gpus := quota.Resource("nvidia.com/gpu", quota.Device{Model: a100, Kind: quota.Whole})
	other := quota.Resource("nvidia.com/gpu", quota.Device{Model: h100, Kind: quota.Whole})
	mig := quota.Resource("nvidia.com/mig-1g.5gb", quota.Device{Model: a100, Kind: quota.MIG})
	sliced := quota.Resource("nvidia.com/gpu.shared", quota.Device{Model: a100, Kind: quota.TimeSlicing})
	class := quota.Class("gpu.berth.dev", quota.Device{Model: a100, Kind: quota.Whole})
	const claims, implicit = "gpu.berth.dev.deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/gpu.berth.dev"
	tests := map[string]struct {
		limits []quota.Limit
		all    []quota.Counted
		want   map[string]int64
		shared []string
	}{
		"no device": {limits: []quota.Limit{{Max: 4}}},
		"all": {limits: []quota.Limit{{Max: 4}}, all: []quota.Counted{gpus, other, mig, sliced, class},
			want: map[string]int64{"requests.nvidia.com/gpu": 4, "requests.nvidia.com/mig-1g.5gb": 4, "requests.nvidia.com/gpu.shared": 4, claims: 4, implicit: 4}},
		"whole GPUs": {limits: []quota.Limit{{Kind: quota.Whole, Max: 4}}, all: []quota.Counted{gpus, mig, sliced, class},
			want: map[string]int64{"requests.nvidia.com/gpu": 4, claims: 4, implicit: 4}},
		"MIG": {limits: []quota.Limit{{Kind: quota.MIG, Max: 0}}, all: []quota.Counted{gpus, mig},
			want: map[string]int64{"requests.nvidia.com/mig-1g.5gb": 0}},
		"a model": {limits: []quota.Limit{{Model: "NVIDIA A100*", Max: 4}}, all: []quota.Counted{gpus, mig},
			want: map[string]int64{"requests.nvidia.com/gpu": 4, "requests.nvidia.com/mig-1g.5gb": 4}},
		"a model whose name others have": {limits: []quota.Limit{{Model: "NVIDIA A100*", Max: 4}}, all: []quota.Counted{gpus, other, mig},
			want: map[string]int64{"requests.nvidia.com/mig-1g.5gb": 4}, shared: []string{"nvidia.com/gpu is also " + h100 + " (whole)"}},
		"the smallest holds": {limits: []quota.Limit{{Max: 4}, {Kind: quota.MIG, Max: 2}, {Kind: quota.MIG, Max: 3}}, all: []quota.Counted{gpus, mig},
			want: map[string]int64{"requests.nvidia.com/gpu": 4, "requests.nvidia.com/mig-1g.5gb": 2}},
		"no device is known": {limits: []quota.Limit{{Model: a100, Max: 4}, {Kind: quota.MIG, Max: 2}, {Kind: quota.MPS, Max: 1}},
			all:  []quota.Counted{quota.Resource("nvidia.com/gpu").Of(quota.Whole), quota.Resource("nvidia.com/mig-1g.5gb").Of(quota.MIG), quota.Resource("example.com/any")},
			want: map[string]int64{"requests.nvidia.com/gpu": 4, "requests.nvidia.com/mig-1g.5gb": 2, "requests.example.com/any": 1}},
		"of another model, known under one name": {limits: []quota.Limit{{Model: "NVIDIA A100*", Max: 4}}, all: []quota.Counted{other, quota.Resource("nvidia.com/gpu").Of(quota.Whole)}},
		"of another model, and it stays": {limits: []quota.Limit{{Model: "NVIDIA A100*", Max: 4}}, all: []quota.Counted{other, quota.Resource("nvidia.com/gpu").Staying()},
			want: map[string]int64{"requests.nvidia.com/gpu": 4}},
		"shared, and it stays": {limits: []quota.Limit{{Model: "NVIDIA A100*", Max: 4}}, all: []quota.Counted{gpus, other, quota.Resource("nvidia.com/gpu").Staying()},
			want: map[string]int64{"requests.nvidia.com/gpu": 4}, shared: []string{"nvidia.com/gpu is also " + h100 + " (whole)"}},
		"it stays, and no limit can mean it": {limits: []quota.Limit{{Kind: quota.MIG, Max: 4}}, all: []quota.Counted{quota.Resource("nvidia.com/gpu").Of(quota.Whole).Staying()}},
		"a pattern that is wrong":            {limits: []quota.Limit{{Model: "[", Max: 4}}, all: []quota.Counted{gpus}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := quota.Make(tc.limits, tc.all)
			if !maps.Equal(got.Hard, tc.want) || !slices.Equal(got.Shared, tc.shared) {
				t.Errorf("got %v, shared %q; want %v, shared %q", got.Hard, got.Shared, tc.want, tc.shared)
			}
		})
	}
}

// TestTwin compares the plan with one that asks of each name and each limit: are all its devices selected, and which of these limits is the
// smallest. The order of the inputs is arbitrary.
func TestTwin(t *testing.T) {
	device := rapid.Custom(func(t *rapid.T) quota.Device {
		return quota.Device{Model: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"),
			Kind: rapid.SampledFrom([]quota.Kind{quota.Whole, quota.MIG, quota.MPS}).Draw(t, "kind")}
	})
	counted := rapid.Custom(func(t *rapid.T) quota.Counted {
		name := rapid.SampledFrom([]string{"x/a", "x/b"}).Draw(t, "name")
		return quota.Resource(name, rapid.SliceOfN(device, 0, 3).Draw(t, "devices")...)
	})
	limit := rapid.Custom(func(t *rapid.T) quota.Limit {
		return quota.Limit{Model: rapid.SampledFrom([]string{"", "A", "*"}).Draw(t, "pattern"),
			Kind: rapid.SampledFrom([]quota.Kind{"", quota.Whole, quota.MIG}).Draw(t, "of"), Max: rapid.Int64Range(0, 3).Draw(t, "max")}
	})
	rapid.Check(t, func(t *rapid.T) {
		all, limits := rapid.SliceOfN(counted, 0, 5).Draw(t, "all"), rapid.SliceOfN(limit, 0, 4).Draw(t, "limits")
		want := map[string]int64{}
		for _, name := range []string{"x/a", "x/b"} {
			for _, l := range limits {
				some, every, known := false, true, false
				for _, c := range all {
					for _, d := range c.Devices {
						if c.Name != name {
							continue
						}
						selected := (l.Kind == "" || l.Kind == d.Kind) && (l.Model != "A" || d.Model == "A")
						some, every, known = some || selected, every && selected, true
					}
				}
				named := slices.ContainsFunc(all, func(c quota.Counted) bool { return c.Name == name })
				if old, ok := want["requests."+name]; (some && every || named && !known) && (!ok || l.Max < old) {
					want["requests."+name] = l.Max
				}
			}
		}
		if got := quota.Make(limits, all); !maps.Equal(got.Hard, want) {
			t.Fatalf("got %v, want %v", got.Hard, want)
		}
		slices.Reverse(all)
		if got := quota.Make(limits, all); !maps.Equal(got.Hard, want) {
			t.Fatalf("in another order: got %v, want %v", got.Hard, want)
		}
	})
}

// TestStays: whatever devices come and go, a name that was limited on account of its devices stays limited, also when what is known of it
// comes from the plan before alone.
func TestStays(t *testing.T) {
	kinds := []quota.Kind{quota.Whole, quota.MIG, quota.MPS}
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) quota.Limit {
			return quota.Limit{Model: rapid.SampledFrom([]string{"", "A"}).Draw(t, "pattern"), Kind: rapid.SampledFrom(append(kinds, "")).Draw(t, "of"), Max: rapid.Int64Range(0, 3).Draw(t, "max")}
		}), 1, 3).Draw(t, "limits")
		var last quota.Plan
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			var all []quota.Counted
			for _, name := range []string{"x/a", "x/b"} {
				for range rapid.IntRange(0, 2).Draw(t, "devices") {
					all = append(all, quota.Resource(name, quota.Device{Model: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"), Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}))
				}
			}
			for key, kinds := range last.Stay {
				c, ok := quota.Known(key)
				if !ok {
					t.Fatalf("key %q is not known", key)
				}
				all = append(all, c.Of(kinds...).Staying())
			}
			plan := quota.Make(limits, all)
			for key := range last.Stay {
				if _, ok := plan.Hard[key]; !ok {
					t.Fatalf("%s was limited, and is not with %+v", key, all)
				}
			}
			last = plan
		}
	})
}

func TestKnown(t *testing.T) {
	for key, want := range map[string]string{"requests.nvidia.com/gpu": "nvidia.com/gpu", "gpu.berth.dev.deviceclass.resource.k8s.io/devices": "gpu.berth.dev",
		"requests.deviceclass.resource.kubernetes.io/gpu.berth.dev": "gpu.berth.dev", "pods": "", "requests.cpu": "", "": "", ".deviceclass.resource.k8s.io/devices": ""} {
		c, ok := quota.Known(key)
		if ok != (want != "") || ok && (c.Name != want || !slices.Contains(c.Keys, key)) {
			t.Errorf("Known(%q) = %+v, %v; want %q", key, c, ok, want)
		}
	}
}
