package migsync

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/offer"
)

var viaDRA = &v1alpha1.Allocation{API: v1alpha1.AllocationDRA}

// TestTwoAPIs refuses layouts whose devices would have a name that the other API serves, by every way to a layout and to a name.
func TestTwoAPIs(t *testing.T) {
	small := &v1alpha1.MIGSettings{Devices: map[string]int{"1g.10gb": 2}}
	large := &v1alpha1.MIGSettings{Devices: map[string]int{"3g.40gb": 1}}
	on := func(index int) v1alpha1.GPUSelector { return v1alpha1.GPUSelector{Index: []int{index}} }
	dynamic := v1alpha1.GPURule{Select: on(1), Allocation: viaDRA, DynamicMIG: true}
	static := v1alpha1.GPURule{Select: on(1), Allocation: viaDRA, MIG: small}
	plugin := v1alpha1.GPURule{Select: on(0), MIG: small, ResourceName: "example.com/gpu"}
	whole := v1alpha1.GPURule{Select: on(0), ResourceName: "example.com/gpu"}
	shared := func(mode v1alpha1.SharingMode, name string, rename bool) v1alpha1.GPURule {
		return v1alpha1.GPURule{Select: on(0), Sharing: &v1alpha1.Sharing{Mode: mode, Replicas: 2, ResourceName: name, RenameByDefault: rename}}
	}
	named := func(name string, sharing *v1alpha1.Sharing) []v1alpha1.MIGDeviceRule {
		return []v1alpha1.MIGDeviceRule{{ResourceName: name, Sharing: sharing}}
	}
	counted := func(count int) []v1alpha1.MIGDeviceRule {
		return []v1alpha1.MIGDeviceRule{{Select: v1alpha1.MIGDeviceSelector{Count: count}, ResourceName: "example.com/mig"}}
	}
	renamed := &v1alpha1.Sharing{Mode: v1alpha1.SharingTimeSlicing, Replicas: 2, RenameByDefault: true}
	tests := map[string]struct {
		config v1alpha1.AgentConfig
		label  string
		// parted are the GPUs that have a 1g.10gb now.
		parted []gpu.UUID
		// conflict is what the error names; empty when the layouts are applied.
		conflict string
	}{
		"a rule's layout, and MIG devices on demand": {
			config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, dynamic}}, conflict: "change of GPU 0 to gpus[0].mig of the configuration, both the device plugin and DRA would serve nvidia.com/mig-1g.10gb on this node"},
		"a rule's layout for each API": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, static}}, conflict: "GPU 0, 1 to gpus[0].mig of the configuration, gpus[1].mig of the configuration, both"},
		"a rule's layout, beside one that a GPU has": {
			config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{whole, static}}, parted: []gpu.UUID{"GPU-0"}, conflict: "GPU 1 to gpus[1].mig"},
		"the label's layout": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{whole, dynamic}}, label: "all-1g.10gb",
			conflict: "GPU 0 to layout all-1g.10gb of label nvidia.com/mig.config, both"},
		"the label's layout makes a GPU whole": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamic}, MIGDevices: named("example.com/mig", nil)}, parted: []gpu.UUID{"GPU-0"},
			label: "all-disabled", conflict: "would serve nvidia.com/gpu on"},
		"another name":        {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, dynamic}, MIGDevices: named("example.com/mig", nil)}},
		"a name with .shared": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, dynamic}, MIGDevices: named("", renamed)}},
		"time-sliced without another name": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, dynamic},
			MIGDevices: named("", &v1alpha1.Sharing{Mode: v1alpha1.SharingTimeSlicing, Replicas: 2})}, conflict: "nvidia.com/mig-1g.10gb"},
		"replicas of GPUs with the name": {
			config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{shared(v1alpha1.SharingTimeSlicing, "nvidia.com/mig-1g.10gb", false), static}}, conflict: "GPU 1 to gpus[1].mig"},
		"MPS replicas with the name": {
			config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{shared(v1alpha1.SharingMPS, "nvidia.com/mig-1g.10gb", false), static}}, conflict: "GPU 1 to gpus[1].mig"},
		"replicas with .shared": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{shared(v1alpha1.SharingTimeSlicing, "", true), static}}},
		"strategy single": {config: v1alpha1.AgentConfig{MIGStrategy: v1alpha1.MIGStrategySingle, ResourceName: "example.com/gpu",
			GPUs: []v1alpha1.GPURule{plugin, dynamic, {Select: on(2), Exclude: true}}}},
		"strategy single with a GPU that is whole": {config: v1alpha1.AgentConfig{MIGStrategy: v1alpha1.MIGStrategySingle, ResourceName: "example.com/gpu",
			GPUs: []v1alpha1.GPURule{{Select: on(0), MIG: small}, {Select: on(2)}, dynamic}}, conflict: "nvidia.com/mig-1g.10gb"},
		"strategy single that ends when another GPU changes": {config: v1alpha1.AgentConfig{MIGStrategy: v1alpha1.MIGStrategySingle, ResourceName: "example.com/gpu",
			GPUs: []v1alpha1.GPURule{dynamic, {Select: on(2), Allocation: viaDRA, MIG: large}}}, parted: []gpu.UUID{"GPU-0", "GPU-2"},
			conflict: "change of GPU 2 to gpus[1].mig of the configuration, both the device plugin and DRA would serve nvidia.com/mig-1g.10gb on"},
		"strategy single that begins when another GPU changes": {config: v1alpha1.AgentConfig{MIGStrategy: v1alpha1.MIGStrategySingle,
			GPUs: []v1alpha1.GPURule{dynamic, {Select: on(2), Allocation: viaDRA, MIG: small}}}, parted: []gpu.UUID{"GPU-0"},
			conflict: "change of GPU 2 to gpus[1].mig of the configuration, both the device plugin and DRA would serve nvidia.com/gpu on"},
		"a rule's count that another GPU uses up": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{plugin, dynamic}, MIGDevices: counted(2)},
			parted: []gpu.UUID{"GPU-2"}, conflict: "change of GPU 0 to gpus[0].mig of the configuration, both the device plugin and DRA would serve nvidia.com/mig-1g.10gb on"},
		"a name that both have now, and then other devices": {
			config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{shared(v1alpha1.SharingTimeSlicing, "nvidia.com/mig-1g.10gb", false), dynamic}, MIGDevices: counted(1)},
			parted: []gpu.UUID{"GPU-2"}, label: "one-3g.40gb", conflict: "change of GPU 0 to layout one-3g.40gb of label nvidia.com/mig.config, both"},
		"a name that the same devices have now": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamic, {Select: on(2), MIG: small}},
			MIGDevices: []v1alpha1.MIGDeviceRule{{Select: v1alpha1.MIGDeviceSelector{GPU: []int{2}}, ResourceName: "example.com/mig"}}}, parted: []gpu.UUID{"GPU-0"}},
		"a name that both have now": {config: v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{dynamic}, MIGDevices: named("example.com/mig", nil)}, label: "all-1g.10gb"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			snapshot := nodeOf(3)
			for i := range snapshot.GPUs {
				if g := &snapshot.GPUs[i]; slices.Contains(test.parted, g.UUID) {
					g.MIG.Enabled, g.MIG.Devices = true, []gpu.MIGDevice{{Size: 1, Partition: gpu.Partition{UUID: "MIG-" + g.UUID, Profile: "1g.10gb"}}}
				}
			}
			test.config.GPUs = append(test.config.GPUs, v1alpha1.GPURule{Select: on(2), ResourceName: "example.com/gpu"})
			plan := computeWants(wantInputs{Snapshot: snapshot, Config: &test.config, MIG: configwatch.MIG{Known: true, Layout: test.label, Layouts: map[string][]v1alpha1.MIGLayoutEntry{
				"all-1g.10gb":  {{Devices: v1alpha1.AllOrIndices{Indices: []int{0}}, MIGEnabled: true, MIGDevices: map[string]int{"1g.10gb": 7}}},
				"one-3g.40gb":  {{Devices: v1alpha1.AllOrIndices{Indices: []int{0}}, MIGEnabled: true, MIGDevices: map[string]int{"3g.40gb": 1}}},
				"all-disabled": {{Devices: v1alpha1.AllOrIndices{Indices: []int{0}}}},
			}}})
			if test.conflict == "" {
				if plan.TwoAPIs != nil || len(plan.Wants) == 0 || len(plan.Problems) > 0 {
					t.Errorf("refused with %v; %d wants, problems %v", plan.TwoAPIs, len(plan.Wants), plan.Problems)
				}
				return
			}
			if plan.TwoAPIs == nil || !strings.Contains(plan.TwoAPIs.Error(), test.conflict) || !strings.Contains(plan.TwoAPIs.Error(), "give the devices of the device plugin another name") {
				t.Fatalf("got %v, want %q", plan.TwoAPIs, test.conflict)
			}
			if len(plan.Wants)+len(plan.Modes)+len(plan.Differing) > 0 || len(plan.Problems) != 1 || plan.Problems[0].Code != "MIG_LAYOUT_TWO_APIS" {
				t.Errorf("something would change: %+v", plan)
			}
		})
	}
}

// nodeOf is a node with n H100.
func nodeOf(n int) *gpu.Snapshot {
	snapshot := migtest.TwoGPUs()
	for i := range snapshot.GPUs {
		snapshot.GPUs[i].MemoryBytes, snapshot.GPUs[i].ComputeCapability = 80<<30, gpu.Version{Major: 9}
	}
	for i := len(snapshot.GPUs); i < n; i++ {
		next := snapshot.GPUs[0]
		next.UUID, next.Index = gpu.UUID(fmt.Sprintf("GPU-%d", i)), i
		snapshot.GPUs = append(snapshot.GPUs, next)
	}
	return snapshot
}

// TestNoNameInTwoAPIs: when the hardware has changed as a plan says, each device that a rule allocates through DRA is offered, and no name
// is served by both APIs, for random configurations that are accepted and random labels.
func TestNoNameInTwoAPIs(t *testing.T) {
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		snapshot := nodeOf(4)
		for i := range snapshot.GPUs {
			if rapid.IntRange(0, 3).Draw(t, "parted") == 0 {
				hasDevices(t, &snapshot.GPUs[i], map[string]int{rapid.SampledFrom([]string{"1g.10gb", "3g.40gb"}).Draw(t, "profile"): 1})
			}
		}
		by := drawConfig(t)
		label := rapid.SampledFrom([]string{"", "", "all-disabled", "all-1g.10gb", "all-3g.40gb", "all-balanced", "mixed"}).Draw(t, "label")
		plan := computeWants(wantInputs{Snapshot: snapshot, Config: by, MIG: configwatch.MIG{Known: true, Layout: label, Layouts: map[string][]v1alpha1.MIGLayoutEntry{
			"mixed": {{Devices: v1alpha1.AllOrIndices{Indices: []int{0, 2}}, MIGEnabled: true, MIGDevices: map[string]int{"1g.10gb": 2, "3g.40gb": 1}}},
		}}})
		settings := config.OfferSettings(by, offer.DevicePlugin)
		settings.Repartitioned = plan.Differing
		if plan.TwoAPIs != nil || offer.Refuse(snapshot, offer.Settings{}, settings) != nil || len(offer.SharedNames(snapshot, settings)) > 0 {
			refused++
			return
		}
		for _, want := range plan.Wants {
			if mig.PlanGPU(mig.GPUOf(snapshot.GPU(want.UUID), noHolders), want.Wanted).Refused == "" {
				applied(t, snapshot, want)
			}
		}
		settings.Repartitioned = nil
		units, problems := offer.Resolve(snapshot, settings)
		for _, problem := range problems {
			if problem.Code == offer.ResourceTwoAPIs {
				t.Fatalf("accepted, and then: %s", problem.Message)
			}
		}
		names := map[string]offer.API{}
		both := map[offer.API]bool{}
		for _, unit := range units {
			served := []string{unit.Use.Resource}
			for _, profile := range snapshot.GPU(unit.Key.GPU).MIG.Geometry.Profiles {
				if unit.Use.DynamicMIG {
					served = append(served, "nvidia.com/mig-"+profile.Name)
				}
			}
			for _, name := range served {
				if api, known := names[name]; known && api != unit.Use.API {
					t.Fatalf("%s is served by both APIs: %v", name, units)
				}
				names[name] = unit.Use.API
			}
			both[unit.Use.API] = true
		}
		if len(both) == 2 && len(plan.Wants) > 0 {
			accepted++
		}
	})
	t.Logf("%d configurations with layouts and both APIs were accepted, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Error("the random configurations do not test this")
	}
}

// applied gives a GPU the wanted devices.
func applied(t *rapid.T, snapshot *gpu.Snapshot, want migapply.Want) {
	device := &snapshot.GPUs[slices.IndexFunc(snapshot.GPUs, func(g gpu.GPU) bool { return g.UUID == want.UUID })]
	device.MIG.Enabled, device.MIG.Devices = false, nil
	if want.Wanted.Enabled {
		hasDevices(t, device, want.Wanted.Devices)
	}
}

// hasDevices gives a GPU MIG devices in a random order.
func hasDevices(t *rapid.T, device *gpu.GPU, devices map[string]int) {
	var profiles []string
	for _, profile := range []string{"1g.10gb", "3g.40gb"} {
		profiles = append(profiles, slices.Repeat([]string{profile}, devices[profile])...)
	}
	device.MIG.Enabled, device.MIG.Devices = true, nil
	for i, profile := range rapid.Permutation(profiles).Draw(t, "order") {
		device.MIG.Devices = append(device.MIG.Devices, gpu.MIGDevice{GI: i, Size: 1, Partition: gpu.Partition{
			UUID: gpu.UUID(fmt.Sprintf("MIG-%s-%d", device.UUID, i)), Index: i, Profile: profile,
		}})
	}
}

// drawConfig returns a random configuration that the file's checks accept.
func drawConfig(t *rapid.T) *v1alpha1.AgentConfig {
	c := &v1alpha1.AgentConfig{
		ResourceName: rapid.SampledFrom([]string{"nvidia.com/gpu", "example.com/gpu"}).Draw(t, "resourceName"),
		MIGStrategy:  rapid.SampledFrom([]v1alpha1.MIGStrategy{v1alpha1.MIGStrategyMixed, v1alpha1.MIGStrategyMixed, v1alpha1.MIGStrategySingle, v1alpha1.MIGStrategyNone}).Draw(t, "strategy"),
	}
	sharing := func(name string) *v1alpha1.Sharing {
		s := &v1alpha1.Sharing{Replicas: 2, RenameByDefault: rapid.Bool().Draw(t, "rename"), Mode: v1alpha1.SharingTimeSlicing,
			ResourceName: rapid.SampledFrom([]string{"", "", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/part"}).Draw(t, "name of replicas")}
		if name == "gpu" && rapid.Bool().Draw(t, "mps") {
			s.Mode = v1alpha1.SharingMPS
		}
		return s
	}
	for i := range 4 {
		rule := v1alpha1.GPURule{Select: v1alpha1.GPUSelector{Index: []int{i}}}
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			rule.Allocation, rule.DynamicMIG = viaDRA, true
		case 1:
			rule.Allocation = viaDRA
		case 2:
			rule.Sharing = sharing("gpu")
		case 3:
			rule.Exclude = rapid.Bool().Draw(t, "exclude")
		default:
			rule.ResourceName = rapid.SampledFrom([]string{"", "example.com/gpu"}).Draw(t, "resourceName of a rule")
		}
		if !rule.DynamicMIG && !rule.Exclude && rule.Sharing == nil {
			rule.MIG = rapid.SampledFrom([]*v1alpha1.MIGSettings{nil, {Devices: map[string]int{"1g.10gb": 2}}, {Devices: map[string]int{"3g.40gb": 2}},
				{Layout: "all-disabled"}, {Layout: "all-1g.10gb"}}).Draw(t, "mig")
		}
		c.GPUs = append(c.GPUs, rule)
	}
	for range rapid.IntRange(0, 2).Draw(t, "migDevices") {
		rule := v1alpha1.MIGDeviceRule{ResourceName: rapid.SampledFrom([]string{"", "example.com/mig", "nvidia.com/mig-3g.40gb"}).Draw(t, "name of MIG devices")}
		if rapid.Bool().Draw(t, "by profile") {
			rule.Select.Profile = []string{rapid.SampledFrom([]string{"1g.10gb", "3g.*"}).Draw(t, "profile of the rule")}
			rule.Select.NamedAsGPU = rapid.Bool().Draw(t, "named as GPU")
			// Without a profile the order of the MIG devices, which no plan knows, decides which of them the count is for.
			rule.Select.Count = rapid.IntRange(0, 2).Draw(t, "count of the rule")
		}
		if rapid.Bool().Draw(t, "shared") {
			rule.Sharing = sharing("mig")
		}
		c.MIGDevices = append(c.MIGDevices, rule)
	}
	return c
}
