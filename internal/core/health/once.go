package health

import (
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Once turns the causes that a single scan found into verdicts, in place. What only a history
// shows, such as an XID of a minute ago, it cannot know.
func Once(snapshot *gpu.Snapshot, rules Rules, now time.Time) {
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		record := Update(Input{
			Seen: card.Health.Causes, Recovery: card.Health.Recovery, Answers: card.Health.State != gpu.Gone,
			ScanBegan: now, Now: now, Rules: rules,
		})
		card.Health = record.Whole(rules)
		for j := range card.MIG.Devices {
			part := &card.MIG.Devices[j]
			part.Health = record.MIG(rules, part.GI, part.CI)
		}
	}
}
