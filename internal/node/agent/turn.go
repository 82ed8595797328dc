package agent

import (
	"context"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// turnWithin bounds the wait for the kubelet to register this agent beside another one, and turnStep is the time between two checks of
	// whether that one has ended.
	turnWithin = 30 * time.Second
	turnStep   = 100 * time.Millisecond
	// turn is the source of the problem that the ledger cannot be taken over.
	turn = "ledger turn"
)

// leadAlone takes the ledger over when no other agent of the node writes it.
func (a *Agent) leadAlone(ctx context.Context) {
	if !a.node.ledger.Writes() && !a.node.ledger.HasWriter() {
		a.takeOver(ctx)
	}
}

// awaitTurn returns when this agent has to write the ledger in place of the one before, which the kubelet calls for claims until it has
// registered this one: at once while no device is allocated through DRA, else when it has registered it, when the other agent has ended, or
// after turnWithin.
func (a *Agent) awaitTurn(ctx context.Context) {
	if !a.devices.dra.InUse() {
		return
	}
	late := a.deps.Clock.After(turnWithin)
	for a.node.ledger.HasWriter() {
		select {
		case <-ctx.Done():
			return
		case <-a.devices.dra.Registered():
			return
		case <-late:
			a.log("agent").Warn("Took the ledger over although the kubelet has not registered the DRA driver; prepares fail until it has", "waited", turnWithin)
			return
		case <-a.deps.Clock.After(turnStep):
		}
	}
}

// takeOver makes this agent the writer of the ledger, and returns when it is or ctx ends.
func (a *Agent) takeOver(ctx context.Context) {
	for {
		err := a.node.ledger.TakeOver()
		if err == nil {
			a.reports.list.Set(turn)
			return
		}
		a.reports.list.Set(turn, gpu.Cause{Code: "LEDGER_UNWRITABLE", Message: err.Error()})
		select {
		case <-ctx.Done():
			return
		case <-a.deps.Clock.After(turnStep):
		}
	}
}
