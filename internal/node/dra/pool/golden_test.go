package pool

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestSlicesOfMachines prints what simulated machines publish.
func TestSlicesOfMachines(t *testing.T) {
	type change func(n *nvidiatest.Node, s *Settings, snapshot *gpu.Snapshot)
	for name, test := range map[string]struct {
		profile string
		dynamic []int
		change  change
	}{
		"h100x8":             {profile: "h100x8"},
		"h100x8-dynamic":     {profile: "h100x8", dynamic: upTo(8)},
		"h100x8-whole-only":  {profile: "h100x8", dynamic: upTo(8), change: func(_ *nvidiatest.Node, s *Settings, _ *gpu.Snapshot) { s.WholeOnly = true }},
		"a30x4-dynamic":      {profile: "a30x4", dynamic: upTo(4), change: func(n *nvidiatest.Node, _ *Settings, s *gpu.Snapshot) { enableAll(n, s.GPUs) }},
		"b200x8-dynamic":     {profile: "b200x8", dynamic: []int{6, 7}},
		"rtxpro6000-dynamic": {profile: "rtxpro6000x8", dynamic: []int{0}},
		"gb200x4":            {profile: "gb200x4"},
		"v100x8":             {profile: "v100x8-hybrid-mesh"},
		"mixed":              {profile: "mixed", dynamic: upTo(8)},
		// Two dynamic GPUs with MIG on, two with MIG off, two under a layout, and two that are never partitioned.
		"a100x8": {profile: "a100x8-40g", dynamic: []int{0, 1, 2, 3}, change: func(n *nvidiatest.Node, _ *Settings, s *gpu.Snapshot) {
			enableAll(n, s.GPUs[:2])
			enableAll(n, s.GPUs[4:6])
			for start, profile := range map[int]string{0: "4g.20gb", 4: "2g.10gb", 6: "1g.5gb+me"} {
				if _, err := n.Actions.CreateMIG(s.GPUs[4].UUID, profile, start); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := nvidiatest.New(t, test.profile)
			snapshot := n.Scan()
			dynamic := test.dynamic
			if name == "mixed" {
				dynamic = upTo(len(snapshot.GPUs))
			}
			with := settings(snapshot, dynamic...)
			if test.change != nil {
				test.change(n, &with, snapshot)
				snapshot = n.Scan()
			}
			result := build(t, snapshot, with, nil)
			var b strings.Builder
			for _, refused := range result.Refused {
				b.WriteString("# refused: " + string(refused.GPU) + ": " + refused.Reason + "\n")
			}
			golden.File(t, "testdata/"+name+".yaml", b.String()+write(t, result.Slices))
			if read := readSlices(t, name+".yaml"); !equality.Semantic.DeepEqual(read, result.Slices) {
				t.Error("the golden file is not what is published")
			}
			// Published slices are kept as they are.
			if again := Build(snapshot, with, result.Slices); !equality.Semantic.DeepEqual(again, result) {
				t.Error("the published slices are not kept")
			}
		})
	}
}

func enableAll(n *nvidiatest.Node, gpus []gpu.GPU) {
	for i := range gpus {
		n.EnableMIG(gpus[i].UUID)
	}
}

// TestEveryMachine builds and validates the slices of every machine, with all GPUs dynamic.
func TestEveryMachine(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			snapshot := nvidiatest.New(t, profile).Scan()
			result := build(t, snapshot, settings(snapshot, upTo(len(snapshot.GPUs))...), nil)
			for i := range result.Slices {
				if n := len(result.Slices[i].Spec.Devices); n > 64 {
					t.Errorf("slice %d has %d devices", i, n)
				}
			}
		})
	}
}
