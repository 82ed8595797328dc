package placement

import (
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Node returns a node of the scheduling cycle, and what of its GPUs is free once pods have ended; for the plugin that preempts. The result is
// false for a node that is not known, and must not be changed.
func (f *Factory) Node(name string) (*fleet.Node, []fleetview.Held, bool) {
	i, ok := f.model.Index(name)
	if !ok {
		return nil, nil, false
	}
	view := f.model.View(i)
	return &view.Node, view.Held(), true
}
