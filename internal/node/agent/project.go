package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/version"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// project keeps what the publishers of GPUNode, labels and metrics are to show equal to inventory, ledger and settled
// use until ctx ends, and wakes those that depend on the settled use.
func (a *Agent) project(ctx context.Context) error {
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	holdings := a.ledger.Subscribe()
	defer holdings.Close()
	conditions := a.conditions.Subscribe()
	defer conditions.Close()
	problems := a.problemList.Subscribe()
	defer problems.Close()
	settled := a.allocatable.SubscribeUse()
	defer settled.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		case <-holdings.C():
		case <-settled.C():
			a.cdi.Poke()
		case <-conditions.C():
		case <-problems.C():
		case <-a.republish.C():
		}
		a.publish()
		a.publishLabels(a.inventory.Current())
		a.render()
	}
}

// problems are all troubles of the node that belong to no card.
func (a *Agent) problems() []gpu.Cause {
	causes := append([]gpu.Cause(nil), a.inventory.Current().Faults...)
	causes = append(causes, a.ledger.Faults()...)
	return append(causes, a.problemList.All()...)
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
	// Nobody knows the pod of a pending holding yet.
	named := slices.DeleteFunc(a.holdings(), func(h gpu.Holding) bool { return h.Holder.Kind == gpu.HolderPod && h.Holder.PodUID == "" })
	now := a.watch.Current()
	a.publisher.Publish(gpunode.Build(a.config.NodeName, gpunode.Input{
		AgentVersion: version.Current().Version, Snapshot: &snapshot, Holdings: named, Offered: offered(a.allocatable.Units()), Conditions: a.conditions.All(),
		Excluded: excluded(&snapshot, now.Config),
		Config:   v1alpha1.GPUConfigStatus{Source: now.Source, MIGLayout: now.MIG.Layout, MIGConfigMap: now.Config.MIGConfigMap},
	}))
}

// excluded are the cards that the configuration leaves alone.
func excluded(snapshot *gpu.Snapshot, inForce *v1alpha1.AgentConfig) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for card, rule := range offer.DecidingRules(snapshot, config.OfferSettings(inForce).GPUs) {
		out[card] = inForce.GPUs[rule].Exclude
	}
	return out
}

// offered says as what each device is given out, in the words of the API.
func offered(units []offer.Unit) map[gpu.UUID]v1alpha1.DeviceOffer {
	out := map[gpu.UUID]v1alpha1.DeviceOffer{}
	for _, unit := range units {
		use := unit.Use
		made := v1alpha1.DeviceOffer{
			Resource: use.Resource, Sharing: string(use.Mode), Replicas: use.Replicas, TimeSlice: use.TimeSlice, Draining: unit.Draining,
		}
		if use.Mode == offer.MPS {
			made.PinnedMemoryMiB, made.ActiveThreadPercentage = use.PinnedMemoryMiB, use.ActiveThreadPercentage
		}
		out[unit.Key.Device()] = made
	}
	return out
}

// ensureDefinition installs the CRD until it is there or may not be.
func (a *Agent) ensureDefinition(ctx context.Context) error {
	return a.retry.Do(ctx, func(ctx context.Context) (done bool) {
		err := gpunode.EnsureDefinition(ctx, a.api, a.log)
		a.problemList.SetError("definition", "GPUNODE_DEFINITION", err)
		return err == nil || errors.Is(err, gpunode.ErrNotPermitted)
	})
}
