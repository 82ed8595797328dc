package preemption

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Views has the nodes as the plugin for placement sees them in the scheduling cycle.
type Views interface {
	Holdings(node string) (*fleetview.View, bool)
	Requests(pod *v1.Pod) []fleet.Shape
}

// FromViews returns the dependencies of the plugin by those views.
func FromViews(views Views) Deps {
	return Deps{Nodes: func(fwk.Handle) (Nodes, error) { return viewNodes{views}, nil }}
}

type viewNodes struct{ Views }

// Node returns a node, and what is free once its pods have ended.
func (n viewNodes) Node(name string) (*fleet.Node, []fleetview.Held, bool) {
	view, ok := n.Holdings(name)
	if !ok {
		return nil, nil, false
	}
	return &view.Node, view.Held(), true
}
