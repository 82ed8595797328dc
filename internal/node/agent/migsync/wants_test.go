package migsync

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// rule is a rule of the configuration for one GPU.
func rule(index int, settings *v1alpha1.MIGSettings) v1alpha1.GPURule {
	return v1alpha1.GPURule{Select: v1alpha1.GPUSelector{Index: []int{index}}, MIG: settings}
}

// entry is a layout of one entry for all GPUs.
func entry(devices map[string]int) []v1alpha1.MIGLayoutEntry {
	return []v1alpha1.MIGLayoutEntry{{Devices: v1alpha1.AllOrIndices{All: true}, MIGEnabled: true, MIGDevices: devices}}
}

func TestWants(t *testing.T) {
	const label = "label nvidia.com/mig.config"
	on := func(id gpu.UUID, source string, devices map[string]int) migapply.Want {
		return migapply.Want{UUID: id, Wanted: mig.Wanted{Enabled: true, Devices: devices}, Source: source}
	}
	seven, two, one := map[string]int{"1g.10gb": 7}, map[string]int{"3g.40gb": 2}, map[string]int{"1g.10gb": 1}
	tests := map[string]struct {
		of       wantInputs
		want     []migapply.Want
		problems []gpu.Cause
		modes    map[gpu.UUID]string
		differs  bool
	}{
		"nothing": {of: wantInputs{MIG: configwatch.MIG{Known: true}}},
		"the label is not known": {of: wantInputs{
			MIG: configwatch.MIG{Layout: "all-1g.10gb"}, Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0,
				&v1alpha1.MIGSettings{Devices: seven})}},
		}},
		"the configuration is not known": {of: wantInputs{
			Waiting: true, MIG: configwatch.MIG{Known: true}, Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0,
				&v1alpha1.MIGSettings{Devices: seven})}},
		}},
		"a label": {
			of: wantInputs{MIG: configwatch.MIG{Known: true, Layout: "all-1g.10gb"}},
			want: []migapply.Want{
				on("GPU-0", "layout all-1g.10gb of "+label, seven), on("GPU-1", "layout all-1g.10gb of "+label, seven),
			},
			modes: map[gpu.UUID]string{
				"GPU-0": "its MIG mode is about to change for layout all-1g.10gb of " + label, "GPU-1": "its MIG mode is about to change for layout all-1g.10gb of " + label,
			},
			differs: true,
		},
		"a label that asks for what is there": {
			of: wantInputs{MIG: configwatch.MIG{Known: true, Layout: "all-disabled"}},
			want: []migapply.Want{
				{UUID: "GPU-0", Source: "layout all-disabled of " + label}, {UUID: "GPU-1", Source: "layout all-disabled of " + label},
			},
		},
		"a label over rules, for the GPUs that it names": {
			of: wantInputs{
				MIG: configwatch.MIG{Known: true, Layout: "first", Layouts: map[string][]v1alpha1.MIGLayoutEntry{
					"first": {{Devices: v1alpha1.AllOrIndices{Indices: []int{0}}}},
				}},
				Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: seven}),
					rule(1, &v1alpha1.MIGSettings{Layout: "all-3g.40gb"})}},
			},
			want: []migapply.Want{
				{UUID: "GPU-0", Source: "layout first of " + label}, on("GPU-1",
					"layout all-3g.40gb of gpus[1].mig of the configuration", two),
			},
			modes:   map[gpu.UUID]string{"GPU-1": "its MIG mode is about to change for layout all-3g.40gb of gpus[1].mig of the configuration"},
			differs: true,
		},
		"layouts of the ConfigMap over those of the configuration over those of the hardware": {
			of: wantInputs{
				MIG: configwatch.MIG{Known: true, Layouts: map[string][]v1alpha1.MIGLayoutEntry{"all-3g.40gb": entry(one)}},
				Config: &v1alpha1.AgentConfig{
					MIGLayouts: map[string][]v1alpha1.MIGLayoutEntry{"all-3g.40gb": entry(two), "all-1g.10gb": entry(one)},
					GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Layout: "all-3g.40gb"}),
						rule(1, &v1alpha1.MIGSettings{Layout: "all-1g.10gb"})},
				},
			},
			want: []migapply.Want{
				on("GPU-0", "layout all-3g.40gb of gpus[0].mig of the configuration", one), on("GPU-1",
					"layout all-1g.10gb of gpus[1].mig of the configuration", one),
			},
			modes: map[gpu.UUID]string{
				"GPU-0": "its MIG mode is about to change for layout all-3g.40gb of gpus[0].mig of the configuration",
				"GPU-1": "its MIG mode is about to change for layout all-1g.10gb of gpus[1].mig of the configuration",
			},
			differs: true,
		},
		"devices of a rule, and an excluded GPU": {
			of: wantInputs{
				MIG: configwatch.MIG{Known: true},
				Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: one}),
					{Exclude: true, MIG: &v1alpha1.MIGSettings{Devices: one}}}},
			},
			want:    []migapply.Want{on("GPU-0", "gpus[0].mig of the configuration", one)},
			modes:   map[gpu.UUID]string{"GPU-0": "its MIG mode is about to change for gpus[0].mig of the configuration"},
			differs: true,
		},
		"a label that names a GPU whose MIG devices claims create": {
			of: wantInputs{
				MIG: configwatch.MIG{Known: true, Layout: "all-1g.10gb"},
				Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{{
					Select: v1alpha1.GPUSelector{Index: []int{1}}, Allocation: &v1alpha1.Allocation{API: v1alpha1.AllocationDRA}, DynamicMIG: true,
				}}, MIGDevices: []v1alpha1.MIGDeviceRule{{ResourceName: "example.com/mig"}}},
			},
			want:    []migapply.Want{on("GPU-0", "layout all-1g.10gb of "+label, seven)},
			modes:   map[gpu.UUID]string{"GPU-0": "its MIG mode is about to change for layout all-1g.10gb of " + label},
			differs: true,
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_DYNAMIC",
				Message: "label nvidia.com/mig.config=all-1g.10gb: the layout names GPU 1, whose MIG devices claims create (gpus[0].dynamicMIG of the configuration): name other GPUs in the layout, or remove dynamicMIG; the GPU keeps serving claims"}},
		},
		"a rule without MIG": {of: wantInputs{MIG: configwatch.MIG{Known: true},
			Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, nil)}}}},
		"a label with an unknown layout changes nothing": {
			of: wantInputs{
				MIG:    configwatch.MIG{Known: true, Layout: "all-1g.10g"},
				Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: seven})}},
			},
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_UNKNOWN",
				Message: "label nvidia.com/mig.config=all-1g.10g: " + unknownWants("all-1g.10g")}},
		},
		"a rule with an unknown layout concerns its GPU": {
			of: wantInputs{
				MIG: configwatch.MIG{Known: true},
				Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Layout: "none"}),
					rule(1, &v1alpha1.MIGSettings{Layout: "all-disabled"})}},
			},
			want:     []migapply.Want{{UUID: "GPU-1", Source: "layout all-disabled of gpus[1].mig of the configuration"}},
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_UNKNOWN", Message: "gpus[0].mig of the configuration: " + unknownWants("none")}},
		},
		"a ConfigMap that was never read": {
			of: wantInputs{MIG: configwatch.MIG{Known: true, Layout: "all-1g.10gb", Unread: true},
				Config: &v1alpha1.AgentConfig{MIGConfigMap: "berth/layouts"}},
			problems: []gpu.Cause{{
				Code:    "MIG_LAYOUT_UNKNOWN",
				Message: "label nvidia.com/mig.config=all-1g.10gb: layout all-1g.10gb is not known: no valid content of ConfigMap berth/layouts has been read yet",
			}},
		},
		"a refused ConfigMap": {
			of: wantInputs{MIG: configwatch.MIG{Known: true, Layout: "all-disabled", Err: errors.New("line 3: no such key")}},
			want: []migapply.Want{{UUID: "GPU-0", Source: "layout all-disabled of " + label},
				{UUID: "GPU-1", Source: "layout all-disabled of " + label}},
			problems: []gpu.Cause{{Code: "MIG_LAYOUTS_REFUSED", Message: "line 3: no such key"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.of.Snapshot = migtest.TwoGPUs()
			if tc.of.Config == nil {
				tc.of.Config = &v1alpha1.AgentConfig{}
			}
			got := computeWants(tc.of)
			if diff := cmp.Diff(tc.want, got.Wants); diff != "" {
				t.Errorf("wants (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, got.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if len(tc.modes)+len(got.Modes) > 0 {
				if diff := cmp.Diff(tc.modes, got.Modes); diff != "" {
					t.Errorf("changes of the mode (-want +got):\n%s", diff)
				}
			}
			if (len(got.Differing) > 0) != tc.differs {
				t.Errorf("differing are %v, want some: %v", got.Differing, tc.differs)
			}
		})
	}
}

// unknownWants is the error of FindLayout for a layout.
func unknownWants(name string) string {
	var gpus []mig.GPU
	snapshot := migtest.TwoGPUs()
	for i := range snapshot.GPUs {
		gpus = append(gpus, mig.GPUOf(&snapshot.GPUs[i], noHolders))
	}
	_, err := mig.FindLayout(mig.HardwareLayouts(gpus), name)
	return err.Error()
}
