package agent

import (
	"context"

	"github.com/berth-gpu/berth/internal/node/agent/gpuhistory"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// newHistory returns what knows whether the node has ever had a GPU. A standalone agent knows no GPUNode.
func (a *Agent) newHistory() *gpuhistory.History {
	deps := gpuhistory.Deps{
		Dir:      a.config.PersistentDir,
		NodeUID:  a.deps.Config.NodeUID,
		OnBus:    a.deps.Hardware.OnBus,
		Hardware: a.node.inventory,
		Retry:    nodeapi.Retry{Clock: a.deps.Clock, NodeName: a.config.NodeName},
		FileLost: a.stateLost,
		Report:   a.reports.list.Set,
	}
	if a.deps.API != nil {
		deps.Published = func(ctx context.Context) (bool, error) { return gpunode.HadGPU(ctx, a.deps.API, a.config.NodeName) }
	}
	return gpuhistory.Open(deps)
}
