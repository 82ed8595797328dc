package preemption

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// Node returns a node with what is free once its pods have ended. A whole GPU that several pods have, through one claim, is free once all
// of them have ended.
func (n viewNodes) Node(name string) (*fleet.Node, []Holding, bool) {
	view, ok := n.Holdings(name)
	if !ok {
		return nil, nil, false
	}
	owners := make([][]types.UID, len(view.Node.GPUs))
	for uid, holding := range view.Holdings {
		for _, gpus := range holding.GPUs {
			for i := range gpus.All() {
				owners[i] = append(owners[i], types.UID(uid))
			}
		}
	}
	var holdings []Holding
	for i, pods := range owners {
		gpus := fleet.GPUSet(0).With(i)
		slices.Sort(pods)
		if len(pods) > 0 && view.Node.GPUs[i].Unit == fleet.Whole {
			holdings = append(holdings, Holding{Pods: slices.Compact(pods), GPUs: gpus})
			continue
		}
		for _, pod := range pods {
			holdings = append(holdings, Holding{Pods: []types.UID{pod}, GPUs: gpus})
		}
	}
	slices.SortStableFunc(holdings, func(a, b Holding) int { return cmp.Compare(a.Pods[0], b.Pods[0]) })
	return &view.Node, holdings, true
}
