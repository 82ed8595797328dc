package agent

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// turnWithin bounds the wait for the kubelet to register this agent beside another one, and turnStep is the time between two checks of
	// whether that one has ended.
	turnWithin = time.Minute
	turnStep   = 100 * time.Millisecond
	// callsWithin is how long calls that the kubelet has made to the agent before may take to arrive there once it has registered this one.
	callsWithin = time.Second
	// turnSource is the source of the problem that the ledger cannot be taken over.
	turnSource = "ledger turn"
)

// startLedger has one writer of all agents of the node; *ledger.Ledger is one.
type startLedger interface {
	// Writes reports whether this agent is the writer, and HasWriter whether a living agent is.
	Writes() bool
	HasWriter() bool
	// TakeOver makes this agent the writer.
	TakeOver() error
}

// startClaims is the DRA front end.
type startClaims interface {
	// AwaitAdopted returns when the ledger has the claims that the kubelet lists as prepared, or ctx ends.
	AwaitAdopted(ctx context.Context)
	// InUse reports whether a device is, or was, allocated through DRA.
	InUse() bool
	// Registered is closed once a kubelet has registered the driver.
	Registered() <-chan struct{}
}

// startDeps are the dependencies of startUp.
type startDeps struct {
	// Scanned is closed once the hardware was scanned: without it no device node can be distinguished from another.
	Scanned <-chan struct{}
	Ledger  startLedger
	// Claims is nil without an API server.
	Claims startClaims
	// Look compares the ledger with the node; AwaitConfig returns when the configuration for this hardware is known, and the MIG layout or
	// that the devices were settled before; Begin settles them, when the gate of the node lets them be advertised.
	Look        func(context.Context)
	AwaitConfig func(context.Context)
	Begin       func(context.Context)
	// Daemons reads which MPS daemons run.
	Daemons func(context.Context)
	// Settled is set when the DRA driver may be served, and Compared when all that acts on the node may run.
	Settled  *signal.Ready
	Compared *signal.Ready
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.Clock
	Log    *slog.Logger
}

// startUp does what comes before the agent acts on its node, in this order, and returns when Compared is set, or ctx ends.
//
// The claims that the kubelet lists as prepared are in the ledger before the ledger is compared with the node. Nothing is settled before
// the configuration and the MIG layout are known, since devices would be advertised by those of before; AwaitConfig bounds that wait. Of
// two agents during an upgrade one prepares claims at every moment: the new one follows the ledger until the kubelet has registered its DRA
// driver, and takes it over then. The MPS daemons are known before anything that names them is written.
func startUp(ctx context.Context, deps startDeps) {
	select {
	case <-ctx.Done():
		return
	case <-deps.Scanned:
	}
	if !deps.Ledger.Writes() && !deps.Ledger.HasWriter() {
		deps.takeOver(ctx)
	}
	deps.look(ctx)
	deps.AwaitConfig(ctx)
	deps.Begin(ctx)
	deps.Settled.Set()
	if !deps.Ledger.Writes() {
		deps.awaitTurn(ctx)
		deps.takeOver(ctx)
		deps.look(ctx)
	}
	deps.Daemons(ctx)
	deps.Compared.Set()
}

// look compares the ledger with the node. Before that, its writer gives it the claims that the kubelet lists; a follower has those of the
// writer.
func (d *startDeps) look(ctx context.Context) {
	if d.Claims != nil && d.Ledger.Writes() {
		d.Claims.AwaitAdopted(ctx)
	}
	d.Look(ctx)
}

// awaitTurn returns when this agent has to write the ledger in place of the one before, which the kubelet calls for claims until it has
// registered this one: at once while no device is allocated through DRA, else callsWithin after it has registered it, when the other agent
// has ended, or after turnWithin.
func (d *startDeps) awaitTurn(ctx context.Context) {
	if d.Claims == nil || !d.Claims.InUse() {
		return
	}
	late := d.Clock.After(turnWithin)
	for d.Ledger.HasWriter() {
		select {
		case <-ctx.Done():
			return
		case <-d.Claims.Registered():
			select {
			case <-ctx.Done():
			case <-d.Clock.After(callsWithin):
			}
			return
		case <-late:
			d.Log.Warn("Took the ledger over although the kubelet has not registered the DRA driver; prepares fail until it has", "waited", turnWithin)
			return
		case <-d.Clock.After(turnStep):
		}
	}
}

// takeOver makes this agent the writer of the ledger, and returns when it is or ctx ends.
func (d *startDeps) takeOver(ctx context.Context) {
	for {
		err := d.Ledger.TakeOver()
		if err == nil {
			d.Report(turnSource)
			return
		}
		d.Report(turnSource, gpu.Cause{Code: "LEDGER_UNWRITABLE", Message: err.Error()})
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(turnStep):
		}
	}
}
