package health

import (
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Once replaces the causes that a single scan found by verdicts, in place. The verdicts do not include earlier events, such as XIDs.
func Once(snapshot *gpu.Snapshot, rules Rules, now time.Time) {
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		record := Update(Input{
			Seen: g.Health.Causes, Recovery: g.Health.Recovery, Answers: g.Health.State != gpu.Gone,
			ScanBegan: now, Now: now, Rules: rules,
		})
		g.Health = record.Whole(rules)
		for j := range g.MIG.Devices {
			part := &g.MIG.Devices[j]
			part.Health = record.MIG(rules, part.GI, part.CI)
		}
	}
}
