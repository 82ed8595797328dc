package mig

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestLayoutWanted(t *testing.T) {
	on := map[string]int{"1g.5gb": 7}
	a100, incapable := kindOf(t, "a100-40").gpu(0), kindOf(t, "a100-40").gpu(0)
	incapable.Capable = false
	tests := map[string]struct {
		layout Layout
		gpu    GPU
		want   Wanted
		named  bool
	}{
		"all": {
			Layout{{All: true, Enabled: true, Devices: on}}, a100, Wanted{Enabled: true, Devices: on}, true},
		"all, and it cannot do MIG": {
			Layout{{All: true, Enabled: true, Devices: on}}, incapable, Wanted{}, false},
		"by index, and it cannot do MIG": {
			Layout{{Indices: []int{0}, Enabled: true, Devices: on}}, incapable, Wanted{Enabled: true, Devices: on}, true},
		"another index": {
			Layout{{Indices: []int{1, 2}, Enabled: true, Devices: on}}, a100, Wanted{}, false},
		"another model": {
			Layout{{DeviceIDs: []uint32{0x233010DE}, All: true, Enabled: true, Devices: on}}, a100, Wanted{}, false},
		"one of the models": {
			Layout{{DeviceIDs: []uint32{0x233010DE, 0x20B010DE}, All: true}}, a100, Wanted{}, true},
		"the index of another model": {
			Layout{{DeviceIDs: []uint32{0x233010DE}, Indices: []int{0}}}, a100, Wanted{}, false},
		"the last entry decides": {
			Layout{{All: true, Enabled: true, Devices: on}, {Indices: []int{0}}}, a100, Wanted{}, true},
		"the last entry is for others": {
			Layout{{All: true, Enabled: true, Devices: on}, {Indices: []int{3}}}, a100, Wanted{Enabled: true, Devices: on}, true},
		"no entry": {nil, a100, Wanted{}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, named := tc.layout.Wanted(tc.gpu)
			if diff := cmp.Diff(tc.want, got); diff != "" || named != tc.named {
				t.Errorf("named %v, want %v; wanted (-want +got):\n%s", named, tc.named, diff)
			}
		})
	}
}

func TestPlanNodeNamesMissingGPUs(t *testing.T) {
	gpus := []GPU{kindOf(t, "a100-40").gpu(0), kindOf(t, "a100-40").gpu(1), kindOf(t, "a100-40").gpu(2)}
	plans := PlanNode(gpus, Layout{
		{Indices: []int{7, 1, 5, 7}},
		{DeviceIDs: []uint32{0x233010DE}, Indices: []int{9}}, // a model that the node may lack
	})
	var got []int
	for _, p := range plans {
		got = append(got, p.Index)
		if missing := p.UUID == ""; missing != (p.Refused != "") {
			t.Errorf("GPU %d with UUID %q: refused %q", p.Index, p.UUID, p.Refused)
		}
	}
	if want := []int{1, 5, 7}; !slices.Equal(got, want) {
		t.Errorf("plans for %v, want %v", got, want)
	}
}

// TestHardwareLayoutsApply applies every layout that follows from the hardware to an empty GPU of every kind, and to
// one with the previous layout.
func TestHardwareLayoutsApply(t *testing.T) {
	for _, k := range gpuKinds() {
		empty := k.gpu(0)
		layouts := HardwareLayouts([]GPU{empty})
		if want := len(k.geometry.Profiles) + 3; len(layouts) != want {
			t.Errorf("%s has %d layouts, want %d", k.name, len(layouts), want)
		}
		before := empty
		for _, name := range LayoutNames(layouts) {
			wanted, named := layouts[name].Wanted(empty)
			if !named {
				t.Errorf("%s of %s does not name the GPU", name, k.name)
			}
			if len(layouts[name][0].DeviceIDs) > 0 {
				t.Errorf("%s of %s is for certain models, and there is one", name, k.name)
			}
			if outcome, err := checkChange(empty, wanted); err != nil || outcome == "refused" {
				t.Errorf("%s on an empty %s: %s, %v", name, k.name, outcome, err)
			}
			outcome, err := checkChange(before, wanted)
			if err != nil || outcome == "refused" {
				t.Errorf("%s on %s: %s, %v", name, k.name, outcome, err)
			}
			c := checkerOf(before)
			if err := c.carryOut(PlanGPU(before, wanted)); err != nil {
				t.Errorf("%s on %s: %v", name, k.name, err)
			}
			before.Enabled, before.Instances = c.enabled, c.instances
		}
	}
}

func TestGPUOf(t *testing.T) {
	k := kindOf(t, "a100-40")
	all := []string{"default/x", "default/y", "default/else"}
	held := map[gpu.DeviceKey][]string{
		{GPU: "GPU-0"}:               {"default/whole"},
		{GPU: "GPU-0", MIG: "MIG-b"}: all[:2],
		{GPU: "GPU-0", MIG: "MIG-c"}: {"default/y", "default/z"},
	}
	got := GPUOf(&gpu.GPU{
		UUID: "GPU-0", Index: 2, Product: k.product, DeviceID: k.deviceID,
		MIG: gpu.MIG{
			Capable: true, Enabled: true, ModeNeedsReset: true, Geometry: k.geometry,
			Devices: []gpu.MIGDevice{
				{Partition: gpu.Partition{UUID: "MIG-a", Profile: "1g.5gb"}, GI: 7, Start: 3, Size: 1},
				{Partition: gpu.Partition{UUID: "MIG-b", Profile: "1c.3g.20gb"}, GI: 2, CI: 0, Start: 4, Size: 4},
				{Partition: gpu.Partition{UUID: "MIG-c", Profile: "2c.3g.20gb"}, GI: 2, CI: 1, Start: 4, Size: 4},
			},
			Empty: []gpu.GPUInstance{{GI: 9, Profile: "1g.5gb+me", Start: 1, Size: 1}},
		},
	}, func(key gpu.DeviceKey) []string { return held[key] })
	want := GPU{
		UUID: "GPU-0", Index: 2, Product: k.product, DeviceID: k.deviceID,
		Capable: true, Enabled: true, ModeNeedsReset: true, Geometry: k.geometry,
		Instances: []Instance{
			{UUID: "MIG-a", GI: 7, Profile: "1g.5gb", Start: 3, Size: 1},
			{UUID: "MIG-b", GI: 2, Profile: "1c.3g.20gb", Start: 4, Size: 4, Siblings: []gpu.UUID{"MIG-c"},
				Holders: []string{"default/x", "default/y", "default/z"}},
			{GI: 9, Profile: "1g.5gb+me", Start: 1, Size: 1},
		},
		Holders: []string{"default/whole"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if all[2] != "default/else" {
		t.Errorf("the holders that were given have become %v", all)
	}
}

// TestPlainProfiles uses a GPU that can have more devices without media engines than with them, as the RTX PRO 5000 in
// older guides; the balanced layout consists of those with media engines. Of two profiles with one name, only the first
// is used.
func TestPlainProfiles(t *testing.T) {
	g := GPU{UUID: "GPU-0", Capable: true, Enabled: true, Geometry: gpu.MIGGeometry{MemorySlices: 4, ComputeSlices: 4}}
	for _, p := range []gpu.MIGProfile{
		{Name: "1g.12gb-me", ComputeSlices: 1, Size: 1, Starts: upTo(4), Max: 4},
		{Name: "1g.12gb", ComputeSlices: 1, Size: 1, Starts: upTo(4), Max: 3},
		{Name: "2g.24gb", ComputeSlices: 2, Size: 2, Starts: []int{0, 2}, Max: 2},
		{Name: "2g.24gb", ComputeSlices: 2, Size: 3, Starts: []int{0}, Max: 1},
	} {
		p.Number = len(g.Geometry.Profiles)
		g.Geometry.Profiles = append(g.Geometry.Profiles, p)
	}
	layouts := HardwareLayouts([]GPU{g})
	wanted, _ := layouts["all-balanced"].Wanted(g)
	if diff := cmp.Diff(map[string]int{"1g.12gb": 2, "2g.24gb": 1}, wanted.Devices); diff != "" {
		t.Errorf("all-balanced (-want +got):\n%s", diff)
	}
	wanted, _ = layouts["all-2g.24gb"].Wanted(g)
	if diff := cmp.Diff(map[string]int{"2g.24gb": 2}, wanted.Devices); diff != "" {
		t.Errorf("all-2g.24gb (-want +got):\n%s", diff)
	}
}

// TestNothingIsThereWithMIGOff checks that a plan does not destroy instances seen while MIG is off, which belong to a
// change in progress.
func TestNothingIsThereWithMIGOff(t *testing.T) {
	g := kindOf(t, "a100-40").gpu(0)
	g.Enabled = false
	g.Instances = []Instance{{UUID: "MIG-a", GI: 1, Profile: "1g.5gb", Start: 0, Size: 1, Holders: []string{"default/a"}}}
	if plan := PlanGPU(g, Wanted{}); plan.Changes() || len(plan.Blockers) > 0 {
		t.Errorf("off to off: %+v", plan)
	}
	plan := PlanGPU(g, Wanted{Enabled: true, Devices: map[string]int{"1g.5gb": 1}})
	if len(plan.Destroy)+len(plan.Keep)+len(plan.Blockers) > 0 || len(plan.Create) != 1 {
		t.Errorf("off to on: %+v", plan)
	}
}

// TestAllMediaEngines checks that beside a profile with all media engines only profiles without any fit.
func TestAllMediaEngines(t *testing.T) {
	for _, test := range []struct {
		beside string
		fits   bool
	}{{"1g.24gb-me", true}, {"1g.24gb", false}, {"1g.24gb+gfx", false}, {"2g.48gb", false}, {"2g.48gb-me", true}} {
		g := GPU{Product: "RTX", Capable: true, Enabled: true, Geometry: rtxPro6000()}
		plan := PlanGPU(g, Wanted{Enabled: true, Devices: map[string]int{"1g.24gb+me.all": 1, test.beside: 1}})
		if (plan.Refused == "") != test.fits {
			t.Errorf("1g.24gb+me.all beside %s: refused %q, want it to fit: %v", test.beside, plan.Refused, test.fits)
		}
		if !test.fits && !strings.Contains(plan.Refused, "-me") {
			t.Errorf("no advice in %q", plan.Refused)
		}
	}
}

// TestMediaEngines reads the attributes in the names of profiles.
func TestMediaEngines(t *testing.T) {
	tests := map[string]bool{
		"1g.5gb": false, "1g.5gb+me": true, "1g.24gb+me.all": true, "1g.24gb-me": false, "1g.24gb+gfx": false,
		"1g.24gb+gfx+me": true, "1g.24gb+me-gfx": true, "1g.24gb+gfx-me": false, "1g.24gb+memory": false, "": false,
	}
	for name, want := range tests {
		if got := hasAttribute(name, '+', "me", "me.all"); got != want {
			t.Errorf("media engines of %q: %v, want %v", name, got, want)
		}
	}
}
