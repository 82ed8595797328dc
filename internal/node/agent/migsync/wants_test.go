package migsync

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
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
		of       inputs
		want     []migapply.Want
		problems []gpu.Cause
		modes    map[gpu.UUID]string
		differs  bool
	}{
		"nothing": {of: inputs{mig: configwatch.MIG{Known: true}}},
		"the label is not known": {of: inputs{
			mig: configwatch.MIG{Layout: "all-1g.10gb"}, config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0,
				&v1alpha1.MIGSettings{Devices: seven})}},
		}},
		"the configuration is not known": {of: inputs{
			waiting: true, mig: configwatch.MIG{Known: true}, config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0,
				&v1alpha1.MIGSettings{Devices: seven})}},
		}},
		"a label": {
			of: inputs{mig: configwatch.MIG{Known: true, Layout: "all-1g.10gb"}},
			want: []migapply.Want{
				on("GPU-0", "layout all-1g.10gb of "+label, seven), on("GPU-1", "layout all-1g.10gb of "+label, seven),
			},
			modes: map[gpu.UUID]string{
				"GPU-0": "its MIG mode is about to change for layout all-1g.10gb of " + label, "GPU-1": "its MIG mode is about to change for layout all-1g.10gb of " + label,
			},
			differs: true,
		},
		"a label that asks for what is there": {
			of: inputs{mig: configwatch.MIG{Known: true, Layout: "all-disabled"}},
			want: []migapply.Want{
				{UUID: "GPU-0", Source: "layout all-disabled of " + label}, {UUID: "GPU-1", Source: "layout all-disabled of " + label},
			},
		},
		"a label over rules, for the GPUs that it names": {
			of: inputs{
				mig: configwatch.MIG{Known: true, Layout: "first", Layouts: map[string][]v1alpha1.MIGLayoutEntry{
					"first": {{Devices: v1alpha1.AllOrIndices{Indices: []int{0}}}},
				}},
				config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: seven}),
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
			of: inputs{
				mig: configwatch.MIG{Known: true, Layouts: map[string][]v1alpha1.MIGLayoutEntry{"all-3g.40gb": entry(one)}},
				config: &v1alpha1.AgentConfig{
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
			of: inputs{
				mig: configwatch.MIG{Known: true},
				config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: one}),
					{Exclude: true, MIG: &v1alpha1.MIGSettings{Devices: one}}}},
			},
			want:    []migapply.Want{on("GPU-0", "gpus[0].mig of the configuration", one)},
			modes:   map[gpu.UUID]string{"GPU-0": "its MIG mode is about to change for gpus[0].mig of the configuration"},
			differs: true,
		},
		"a label that names a GPU whose MIG devices claims create": {
			of: inputs{
				mig: configwatch.MIG{Known: true, Layout: "all-1g.10gb"},
				config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{{
					Select: v1alpha1.GPUSelector{Index: []int{1}}, Allocation: &v1alpha1.Allocation{API: v1alpha1.AllocationDRA}, DynamicMIG: true,
				}}},
			},
			want:    []migapply.Want{on("GPU-0", "layout all-1g.10gb of "+label, seven)},
			modes:   map[gpu.UUID]string{"GPU-0": "its MIG mode is about to change for layout all-1g.10gb of " + label},
			differs: true,
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_DYNAMIC",
				Message: "label nvidia.com/mig.config=all-1g.10gb: the layout names GPU 1, whose MIG devices claims create (gpus[0].dynamicMIG of the configuration): name other GPUs in the layout, or remove dynamicMIG; the GPU keeps serving claims"}},
		},
		"a rule without MIG": {of: inputs{mig: configwatch.MIG{Known: true},
			config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, nil)}}}},
		"a label with an unknown layout changes nothing": {
			of: inputs{
				mig:    configwatch.MIG{Known: true, Layout: "all-1g.10g"},
				config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Devices: seven})}},
			},
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_UNKNOWN",
				Message: "label nvidia.com/mig.config=all-1g.10g: " + unknown("all-1g.10g")}},
		},
		"a rule with an unknown layout concerns its GPU": {
			of: inputs{
				mig: configwatch.MIG{Known: true},
				config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{rule(0, &v1alpha1.MIGSettings{Layout: "none"}),
					rule(1, &v1alpha1.MIGSettings{Layout: "all-disabled"})}},
			},
			want:     []migapply.Want{{UUID: "GPU-1", Source: "layout all-disabled of gpus[1].mig of the configuration"}},
			problems: []gpu.Cause{{Code: "MIG_LAYOUT_UNKNOWN", Message: "gpus[0].mig of the configuration: " + unknown("none")}},
		},
		"a ConfigMap that was never read": {
			of: inputs{mig: configwatch.MIG{Known: true, Layout: "all-1g.10gb", Unread: true},
				config: &v1alpha1.AgentConfig{MIGConfigMap: "berth/layouts"}},
			problems: []gpu.Cause{{
				Code:    "MIG_LAYOUT_UNKNOWN",
				Message: "label nvidia.com/mig.config=all-1g.10gb: layout all-1g.10gb is not known: no valid content of ConfigMap berth/layouts has been read yet",
			}},
		},
		"a refused ConfigMap": {
			of: inputs{mig: configwatch.MIG{Known: true, Layout: "all-disabled", Err: errors.New("line 3: no such key")}},
			want: []migapply.Want{{UUID: "GPU-0", Source: "layout all-disabled of " + label},
				{UUID: "GPU-1", Source: "layout all-disabled of " + label}},
			problems: []gpu.Cause{{Code: "MIG_LAYOUTS_REFUSED", Message: "line 3: no such key"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.of.snapshot = twoGPUs()
			if tc.of.config == nil {
				tc.of.config = &v1alpha1.AgentConfig{}
			}
			got := compute(tc.of)
			if diff := cmp.Diff(tc.want, got.wants); diff != "" {
				t.Errorf("wants (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, got.problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if len(tc.modes)+len(got.modes) > 0 {
				if diff := cmp.Diff(tc.modes, got.modes); diff != "" {
					t.Errorf("changes of the mode (-want +got):\n%s", diff)
				}
			}
			if (len(got.differing) > 0) != tc.differs {
				t.Errorf("differing are %v, want some: %v", got.differing, tc.differs)
			}
		})
	}
}

// unknown is the error of FindLayout for a layout.
func unknown(name string) string {
	var gpus []mig.GPU
	snapshot := twoGPUs()
	for i := range snapshot.GPUs {
		gpus = append(gpus, mig.GPUOf(&snapshot.GPUs[i], noHolders))
	}
	_, err := mig.FindLayout(mig.HardwareLayouts(gpus), name)
	return err.Error()
}

// TestChanging checks that a GPU whose mode must change is withheld before Partition begins, and is advertised
// unchanged when the change failed.
func TestChanging(t *testing.T) {
	on := true
	tests := map[string]struct {
		statuses []migapply.Status
		snapshot *gpu.Snapshot
		want     map[gpu.UUID]string
	}{
		"before the change": {want: map[gpu.UUID]string{
			"GPU-0": "its MIG mode is about to change for layout all-1g.10gb of label nvidia.com/mig.config",
			"GPU-1": "its MIG mode is about to change for layout all-1g.10gb of label nvidia.com/mig.config",
		}},
		"waiting, and being changed": {statuses: []migapply.Status{
			{UUID: "GPU-0", State: migapply.Waiting, Message: "waits", Plan: mig.GPUPlan{SetMode: &on}},
			{UUID: "GPU-1", State: migapply.Changing, Message: "changes", Plan: mig.GPUPlan{SetMode: &on}},
		}, want: map[gpu.UUID]string{"GPU-0": "waits", "GPU-1": "its MIG mode is about to change for layout all-1g.10gb of label nvidia.com/mig.config"}},
		"failed, and refused": {statuses: []migapply.Status{
			{UUID: "GPU-0", State: migapply.Failed}, {UUID: "GPU-1", State: migapply.Refused},
		}, want: map[gpu.UUID]string{}},
		"another snapshot": {snapshot: &gpu.Snapshot{}, want: map[gpu.UUID]string{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.relabel("all-1g.10gb")
			w.statuses = tc.statuses
			snapshot := tc.snapshot
			if snapshot == nil {
				snapshot = w.snapshot
			}
			changing, repartitioned := w.Changing(snapshot)
			if diff := cmp.Diff(tc.want, changing); diff != "" {
				t.Errorf("changing (-want +got):\n%s", diff)
			}
			if len(repartitioned) != 2 || len(w.Repartitioned(&v1alpha1.AgentConfig{})) != 2 {
				t.Errorf("to be repartitioned are %v, want both GPUs, by whatever configuration", repartitioned)
			}
		})
	}
}
