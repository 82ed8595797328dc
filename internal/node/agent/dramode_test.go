package agent

import (
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestModeAfterDynamicMIG removes dynamicMIG from two GPUs. The one on which a claim turned MIG on is whole when the claim has ended, also
// when the agent has started again since; the one on which an administrator did keeps MIG on.
func TestModeAfterDynamicMIG(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	ctx := t.Context()
	placed := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	claim := b.claim("a", b.device(0, placed.String()))
	if _, err := b.prepare(ctx, claim); err != nil {
		t.Fatalf("%v\n%s", err, b.picture())
	}
	setMIG(t, b.bench, b.uuid(1))
	if err := b.agent.node.inventory.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.configure("gpus: [{select: {index: [0, 1]}, allocation: {api: dra}}, {allocation: {api: dra}, dynamicMIG: true}]\n")
	device := func(index int) *gpu.GPU { return b.agent.node.inventory.Current().GPU(b.uuid(index)) }
	b.until("the GPU waits for the claim", func() bool {
		return slices.ContainsFunc(b.agent.changes.partition.Statuses(), func(s migapply.Status) bool {
			return s.UUID == b.uuid(0) && s.State == migapply.Waiting && !s.Plan.Wanted.Enabled
		})
	})
	if len(b.parts(0)) != 1 {
		t.Errorf("the claim lost its MIG device:\n%s", b.picture())
	}
	if err := b.unprepare(ctx, claim); err != nil {
		t.Fatal(err)
	}
	b.until("MIG is off, and the GPU is published whole", func() bool {
		return !device(0).MIG.Enabled && slices.ContainsFunc(b.agent.devices.allocatable.Current(), func(d offer.Placed) bool {
			return d.Key == gpu.DeviceKey{GPU: b.uuid(0)} && d.Use == offer.Use{API: offer.DRA, Resource: offer.DefaultResource} && d.Draining == ""
		})
	})
	if !device(1).MIG.Enabled {
		t.Error("the mode that an administrator has set was changed")
	}
}
