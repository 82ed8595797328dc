package offer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// throughDRA returns settings that allocate the GPUs of these indices through DRA, and the others as resource.
func throughDRA(resource string, indices ...int) Settings {
	return Settings{ResourceName: resource, MIGStrategy: MIGMixed, GPUs: []GPURule{{Select: GPUSelect{Index: indices}, API: DRA}}}
}

func apiNode() *gpu.Snapshot {
	parted := newGPU(2, "GPU-c", 0)
	parted.MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{
		{Partition: gpu.Partition{UUID: "MIG-x", Index: 0, Profile: "1g.5gb"}}, {Partition: gpu.Partition{UUID: "MIG-y", Index: 1, Profile: "3g.20gb"}},
	}}
	first := newGPU(0, "GPU-a", 0)
	first.MIG.Geometry.Profiles = []gpu.MIGProfile{{Name: "1g.5gb"}, {Name: "3g.20gb"}}
	return &gpu.Snapshot{GPUs: []gpu.GPU{first, newGPU(1, "GPU-b", 0), parted}}
}

func TestResolveAPIs(t *testing.T) {
	migX, migY := gpu.DeviceKey{GPU: "GPU-c", MIG: "MIG-x"}, gpu.DeviceKey{GPU: "GPU-c", MIG: "MIG-y"}
	plugin := func(resource string) Use { return Use{Resource: resource} }
	dra := func(resource string) Use { return Use{API: DRA, Resource: resource} }
	dynamic := func(indices ...int) Settings {
		settings := throughDRA("", indices...)
		settings.GPUs[0].DynamicMIG = true
		return settings
	}
	onDemand := Use{API: DRA, DynamicMIG: true, Resource: "nvidia.com/gpu"}
	alone := dynamic(0)
	alone.GPUs = append(alone.GPUs, GPURule{Select: GPUSelect{Index: []int{1}}, ResourceName: "example.com/gpu"}, GPURule{Select: GPUSelect{Index: []int{2}}, Exclude: true})
	renamed := throughDRA("example.com/gpu", 0)
	renamed.GPUs[0].DynamicMIG = true
	single := dynamic(2)
	single.GPUs = append(single.GPUs, GPURule{Select: GPUSelect{Index: []int{0, 1}}, Exclude: true})
	single.MIGStrategy = MIGSingle
	passing := renamed
	passing.Repartitioned = map[gpu.UUID]bool{"GPU-c": true}
	passingDRA := throughDRA("", 2)
	passingDRA.Repartitioned = map[gpu.UUID]bool{"GPU-c": true}
	const two = "give those another resourceName"
	tests := map[string]struct {
		settings Settings
		want     []Unit
		problem  string
	}{
		"every GPU and MIG device": {throughDRA("", 0, 1, 2), []Unit{
			unit(whole("GPU-a"), dra("nvidia.com/gpu")), unit(whole("GPU-b"), dra("nvidia.com/gpu")),
			unit(migX, dra("nvidia.com/mig-1g.5gb")), unit(migY, dra("nvidia.com/mig-3g.20gb")),
		}, ""},
		"one GPU, the others under another name": {throughDRA("example.com/gpu", 0), []Unit{
			unit(whole("GPU-a"), dra("nvidia.com/gpu")), unit(whole("GPU-b"), plugin("example.com/gpu")),
			unit(migX, plugin("nvidia.com/mig-1g.5gb")), unit(migY, plugin("nvidia.com/mig-3g.20gb")),
		}, ""},
		"one GPU, the others under the same name": {throughDRA("", 0), []Unit{
			unit(whole("GPU-b"), plugin("nvidia.com/gpu")),
			unit(migX, plugin("nvidia.com/mig-1g.5gb")), unit(migY, plugin("nvidia.com/mig-3g.20gb")),
		}, "GPU 0: not offered: DRA would serve nvidia.com/gpu"},
		"the MIG devices of a GPU": {throughDRA("", 2), []Unit{
			unit(whole("GPU-a"), plugin("nvidia.com/gpu")), unit(whole("GPU-b"), plugin("nvidia.com/gpu")),
			unit(migX, dra("nvidia.com/mig-1g.5gb")), unit(migY, dra("nvidia.com/mig-3g.20gb")),
		}, ""},
		"MIG devices on demand of every GPU, also of one that has some": {dynamic(0, 1, 2), []Unit{
			unit(whole("GPU-a"), onDemand), unit(whole("GPU-b"), onDemand), unit(whole("GPU-c"), onDemand),
		}, ""},
		"MIG devices on demand, the others under other names": {alone, []Unit{
			unit(whole("GPU-a"), onDemand), unit(whole("GPU-b"), plugin("example.com/gpu")),
		}, ""},
		"MIG devices on demand of a profile that the device plugin advertises": {renamed, []Unit{
			unit(whole("GPU-b"), plugin("example.com/gpu")),
			unit(migX, plugin("nvidia.com/mig-1g.5gb")), unit(migY, plugin("nvidia.com/mig-3g.20gb")),
		}, "GPU 0: not offered: DRA would serve nvidia.com/mig-1g.5gb"},
		"MIG devices on demand of a profile that the device plugin has until a layout changes": {passing, []Unit{
			unit(whole("GPU-a"), onDemand), unit(whole("GPU-b"), plugin("example.com/gpu")),
		}, ""},
		"the MIG devices of a GPU until its layout changes": {passingDRA, []Unit{
			unit(whole("GPU-a"), plugin("nvidia.com/gpu")), unit(whole("GPU-b"), plugin("nvidia.com/gpu")),
			unit(migX, dra("nvidia.com/mig-1g.5gb")), unit(migY, dra("nvidia.com/mig-3g.20gb")),
		}, ""},
		"MIG devices on demand under strategy single": {single, []Unit{unit(whole("GPU-c"), onDemand)}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			units, problems := Resolve(apiNode(), test.settings)
			if diff := cmp.Diff(test.want, units); diff != "" {
				t.Errorf("units (-want +got):\n%s", diff)
			}
			switch {
			case test.problem == "" && len(problems) > 0:
				t.Errorf("problems: %v, want none", problems)
			case test.problem != "" && (len(problems) != 1 || problems[0].Code != ResourceTwoAPIs ||
				!strings.Contains(problems[0].Message, test.problem) || !strings.Contains(problems[0].Message, two)):
				t.Errorf("problems: %v, want %s with %q and %q", problems, ResourceTwoAPIs, test.problem, two)
			}
			err := Refuse(apiNode(), Settings{MIGStrategy: MIGMixed}, test.settings)
			if refused := err != nil && strings.Contains(err.Error(), two); refused != (test.problem != "") {
				t.Errorf("the settings are refused with %v", err)
			}
		})
	}
}

// TestListIsTheDevicePlugins checks that the kubelet's list has no device of DRA, whatever the name of its resource.
func TestListIsTheDevicePlugins(t *testing.T) {
	units := []Unit{unit(whole("GPU-a"), Use{API: DRA, Resource: DefaultResource}), unit(whole("GPU-b"), Use{Resource: DefaultResource})}
	got := Build(apiNode(), units)
	if len(got) != 1 || len(got[0].Devices) != 1 || got[0].Devices[0].ID != "GPU-b" {
		t.Errorf("the kubelet's list is %+v, want GPU-b alone", got)
	}
	for i, placed := range Place(apiNode(), units) {
		if keys := placed.Keys(); len(keys) != 1 || keys[0] != units[i].Key {
			t.Errorf("unit %d can be allocated as %v", i, keys)
		}
	}
}

// TestAPIChangesWhenReleased switches a GPU between the APIs while it is held: it stays with the API of its holder and
// drains, and changes once it is released.
func TestAPIChangesWhenReleased(t *testing.T) {
	snapshot := &gpu.Snapshot{GPUs: []gpu.GPU{newGPU(0, "GPU-a", 0)}}
	plugin, dra := Use{Resource: DefaultResource}, Use{API: DRA, Resource: DefaultResource}
	onDemand := Use{API: DRA, DynamicMIG: true, Resource: DefaultResource}
	for name, test := range map[string]struct {
		from   Use
		to     Use
		reason string
	}{
		"to DRA":                   {plugin, dra, "waits for default/a to end, then becomes allocated through DRA"},
		"to MIG devices on demand": {plugin, onDemand, "waits for default/a to end, then becomes allocated through DRA with MIG devices on demand"},
		"to the device plugin":     {dra, plugin, "waits for default/a to end, then becomes nvidia.com/gpu (unshared)"},
	} {
		t.Run(name, func(t *testing.T) {
			holders := []string{"default/a"}
			held := func(gpu.DeviceKey) []string { return holders }
			before, after := []Unit{unit(whole("GPU-a"), test.from)}, []Unit{unit(whole("GPU-a"), test.to)}
			draining := Settle(snapshot, after, before, held, nil)
			want := unit(whole("GPU-a"), test.from)
			want.Draining = test.reason
			if diff := cmp.Diff([]Unit{want}, draining); diff != "" {
				t.Errorf("while it is held (-want +got):\n%s", diff)
			}
			holders = nil
			if diff := cmp.Diff(after, Settle(snapshot, after, draining, held, nil)); diff != "" {
				t.Errorf("when it is released (-want +got):\n%s", diff)
			}
		})
	}
}
