package kubeletsync

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// noteChanges logs the changes of a look, and reports conflicts that it found.
func (s *Sync) noteChanges(changes ledger.Changes) {
	for _, change := range changes.List {
		if change.What != ledger.Updated {
			//lint:ignore sloglint one of the constants of ledger.What
			s.deps.Log.Info("Holding "+string(change.What), "holding", change.Holding.String())
		}
	}
	var causes []gpu.Cause
	for _, c := range changes.Conflicts {
		causes = append(causes, gpu.Cause{
			Code:    "DEVICE_CONFLICT",
			Message: fmt.Sprintf("device %s is used by more than one pod (%v): %s", c.Key, c.Pods, c.Why),
		})
	}
	for _, c := range changes.Unmarked {
		causes = append(causes, gpu.Cause{
			Code: "CONTAINER_UNMARKED",
			Message: fmt.Sprintf("container %s of pod %s/%s (UID %s) requests devices and has %v open, and neither the kubelet's checkpoint nor a grant of this agent says which it was given",
				c.Name, c.Namespace, c.Pod, c.PodUID, c.Open),
		})
	}
	s.deps.Report("conflicts", causes...)
}
