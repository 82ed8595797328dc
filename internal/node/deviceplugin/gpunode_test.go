package deviceplugin

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// drawStates excludes GPUs of a machine, or makes them lost or MIG GPUs.
func drawStates(t *rapid.T, h *hardware) {
	for i := range h.snapshot.GPUs {
		g := &h.snapshot.GPUs[i]
		switch rapid.SampledFrom([]string{"", "", "", "excluded", "lost", "mig"}).Draw(t, "state") {
		case "excluded":
			h.settings[0].GPUs = append(h.settings[0].GPUs, offer.GPURule{Select: offer.GPUSelect{UUID: []string{string(g.UUID)}}, Exclude: true})
		case "lost":
			g.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST"}}}
		case "mig":
			g.MIG.Capable, g.MIG.Enabled = true, true
			g.MIG.Devices = []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-" + g.UUID, Profile: "1g.5gb"}, Size: 1}}
		}
	}
}

// gpuPositions returns the positions of the devices that a GPUNode lists, and fails when the view has other ones.
func gpuPositions(t *rapid.T, status *v1alpha1.GPUNodeStatus, v *view) map[string]int {
	listed := map[string]int{}
	for i := range status.Devices {
		listed[status.Devices[i].UUID] = i
	}
	for _, d := range v.devices {
		if at, ok := listed[d.ID]; !ok || at != d.Position {
			t.Fatalf("GPUNode has %s at position %d, %v; the device plugin at %d", d.ID, at, ok, d.Position)
		}
	}
	return listed
}

// TestPreferenceFromGPUNode chooses twice on machines with excluded, lost and MIG GPUs: as the device plugin does, and by placement alone
// on what the GPUNode says. Positions, and so the answers, are the same.
func TestPreferenceFromGPUNode(t *testing.T) {
	chosen := 0
	rapid.Check(t, func(t *rapid.T) {
		h := machine(8)
		for i := range 8 {
			for j := range i {
				link := h.snapshot.Topology[i][j]
				link.Path = gpu.PCIPath(rapid.IntRange(int(gpu.PathUnknown), int(gpu.PathSystem)).Draw(t, "path"))
				h.snapshot.Topology.Set(i, j, link)
			}
		}
		drawStates(t, h)
		state, numa := h.State(), make([]int, 8)
		for i := range numa {
			numa[i] = state.Snapshot.GPUs[i].NUMANode
		}
		at := slices.IndexFunc(state.Offers, func(o offer.Offer) bool { return o.Resource == resource })
		if at < 0 {
			return // No GPU is offered as a whole.
		}
		own, err := placement.NewNode(state.Snapshot.Topology, numa)
		if err != nil {
			t.Fatal(err)
		}
		w := &viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}}
		v := w.build(state.Offers[at], state, own, nil, time.Time{})

		status := gpunode.Build("n", gpunode.Input{Snapshot: state.Snapshot}).Status
		positions := gpuPositions(t, &status, v)
		links, err := gpu.ParseTopologies(len(status.Devices), status.Topology, status.PCITopology)
		if err != nil {
			t.Fatal(err)
		}
		var published []int
		for i := range status.Devices {
			published = append(published, status.Devices[i].NUMANode)
		}
		reader, err := placement.NewNode(links, published)
		if err != nil {
			t.Fatal(err)
		}
		var available []string
		var free placement.Set
		for _, d := range v.devices {
			if d.Health == gpu.Healthy && rapid.Bool().Draw(t, "free") {
				available, free = append(available, d.ID), free|placement.SetOf(positions[d.ID])
			}
		}
		if len(available) == 0 {
			return
		}
		size := rapid.IntRange(1, len(available)).Draw(t, "size")
		got, err := v.preferred(available, nil, size, func(gpu.DeviceKey) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		set, err := reader.Choose(free, 0, size)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for p := range set.Positions() {
			want = append(want, status.Devices[p].UUID)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%d of %v (-GPUNode +device plugin):\n%s", size, available, diff)
		}
		chosen++
	})
	if chosen == 0 {
		t.Error("nothing was chosen")
	}
}
