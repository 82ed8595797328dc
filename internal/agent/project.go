package agent

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/berth-gpu/berth/internal/cdi"
	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/gpunode"
)

const (
	// cdiResync is how often the CDI spec is compared with the driver's files, which
	// change without a change of the inventory.
	cdiResync = time.Minute
	// cdiDeadline bounds one comparison; a file system that hangs leaves the last spec.
	cdiDeadline = 20 * time.Second
)

// project keeps the projections equal to inventory and ledger until ctx ends.
func (a *Agent) project(ctx context.Context) error {
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	holdings := a.ledger.Subscribe()
	defer holdings.Close()
	resync := a.clock.NewTicker(cdiResync)
	defer resync.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
			// 1. Health first: it must reach the kubelet at once, and needs no new spec.
			a.wakePlugin()
			// 2. Then the spec, and with it the devices that are new.
			a.syncCDI(ctx)
		case <-resync.C():
			a.syncCDI(ctx)
		case <-holdings.C():
			a.wakePlugin()
		case <-a.board.changed:
		}
		a.publish()
	}
}

// wakePlugin says that there may be something new to advertise.
func (a *Agent) wakePlugin() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *Agent) syncCDI(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cdiDeadline)
	defer cancel()
	if _, err := a.cdi.Sync(ctx, a.inventory.Current()); err != nil && ctx.Err() == nil {
		a.log.Debug("CDI spec kept", "error", err)
	}
	a.board.set("cdi", a.cdi.Problems()...)
	spec, err := cdi.ReadSpec(a.config.CDIDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.board.fail("cdi-spec", "CDI_SPEC_UNREADABLE", err)
		return
	}
	a.board.set("cdi-spec")
	known := map[gpu.UUID]bool{}
	if spec != nil {
		for _, device := range spec.Devices {
			known[gpu.UUID(device.Name)] = true
		}
	}
	a.injectable.Store(&known)
	a.wakePlugin()
}

// problems are all troubles of the node that belong to no card.
func (a *Agent) problems() []gpu.Cause {
	causes := append([]gpu.Cause(nil), a.inventory.Current().Faults...)
	causes = append(causes, a.ledger.Faults()...)
	return append(causes, a.board.all()...)
}

// publish hands the GPUNode to its publisher, which writes it when it can.
func (a *Agent) publish() {
	if a.publisher == nil {
		return
	}
	select {
	case <-a.compared:
	default:
		return // The holders are not known yet, and "nobody" would be a lie.
	}
	snapshot := *a.inventory.Current()
	snapshot.Faults = a.problems()
	var named []gpunode.Holding
	for _, h := range a.ledger.Holdings() {
		if h.Pending {
			continue // Nobody knows its pod yet.
		}
		named = append(named, gpunode.Holding{
			Key: h.Key, Kind: string(h.Holder.Kind), Namespace: h.Holder.Namespace, Pod: h.Holder.Pod,
			PodUID: h.Holder.PodUID, Container: h.Holder.Container, Resource: h.Holder.Resource,
		})
	}
	if entries := a.entries.Load(); entries != nil {
		named = gpunode.Named(named, entries.checkpoint, entries.listed)
	}
	a.publisher.Publish(gpunode.Build(a.config.NodeName, &snapshot, named))
}

// ensureDefinition installs the CRD until it is there or may not be.
func (a *Agent) ensureDefinition(ctx context.Context) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := gpunode.EnsureDefinition(ctx, a.api, a.log)
		a.board.fail("definition", "GPUNODE_DEFINITION", err)
		if err == nil || errors.Is(err, gpunode.ErrNotPermitted) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(wait):
		}
	}
}
