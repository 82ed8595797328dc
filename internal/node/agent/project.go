package agent

import (
	"context"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// project keeps what the metrics page is to show in line with inventory, ledger and the use in force, until ctx ends.
func (a *Agent) project(ctx context.Context) error {
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	holdings := a.ledger.Subscribe()
	defer holdings.Close()
	problems := a.problemList.Subscribe()
	defer problems.Close()
	settled := a.allocatable.SubscribeUse()
	defer settled.Close()
	republish := a.republish.Subscribe()
	defer republish.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		case <-holdings.C():
		case <-settled.C():
		case <-problems.C():
		case <-republish.C():
		}
		a.render()
	}
}

// nodeProblems are the problems of the node that belong to no GPU.
type nodeProblems struct{ *Agent }

// All implements gpunodesync.Problems.
func (p nodeProblems) All() []gpu.Cause { return p.problems() }

// Subscribe implements gpunodesync.Problems.
func (p nodeProblems) Subscribe() *signal.Subscription { return p.problemList.Subscribe() }

// problems returns the problems of the node that belong to no GPU.
func (a *Agent) problems() []gpu.Cause {
	causes := append([]gpu.Cause(nil), a.inventory.Current().Faults...)
	causes = append(causes, a.ledger.Faults()...)
	return append(causes, a.problemList.All()...)
}
