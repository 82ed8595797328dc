package migsync

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

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
			w := newWorld(t)
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
			if by, err := w.Layouts(&v1alpha1.AgentConfig{}); len(repartitioned) != 2 || len(by) != 2 || err != nil {
				t.Errorf("to be repartitioned are %v, want both GPUs, by whatever configuration", repartitioned)
			}
		})
	}
}
