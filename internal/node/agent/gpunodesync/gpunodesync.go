// Package gpunodesync computes the node's GPUNode object from inventory, ledger, the use in force, configuration,
// the gate, conditions, problems and the kubelet's configuration, and passes it to the publisher, which writes it.
//
// What wakes it: a change of any of these; of the configuration when the use in force follows it. Changes within 50 ms,
// which mostly have one cause, are computed once.
//
// What it writes: nothing. It publishes no object before the ledger was compared with the node, since that would show
// devices in use as free.
//
// What it never waits for: the API server. Everything that it reads is in memory.
//
// It must not import an adapter or a front end.
package gpunodesync

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/version"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// settle is how long further changes are waited for before the object is computed.
const settle = 50 * time.Millisecond

// Ledger has the holdings.
type Ledger interface {
	Holdings() []ledger.Holding
	Subscribe() *signal.Subscription
}

// Devices has the use in force. Its subscription is signalled for a change of the configuration too, when the use follows it.
type Devices interface {
	Units() []offer.Unit
	SubscribeUse() *signal.Subscription
}

// Config is the watcher of the configuration.
type Config interface {
	Current() configwatch.State
}

// Conditions are those of the GPUNode.
type Conditions interface {
	All() []metav1.Condition
	Subscribe() *signal.Subscription
}

// Problems are the node's problems that belong to no GPU.
type Problems interface {
	All() []gpu.Cause
	Subscribe() *signal.Subscription
}

// Gate is the gate of the node; its status is nil where it is off, and before the first decision.
type Gate interface {
	Status() *v1alpha1.GateStatus
	// Decided is closed by the first decision.
	Decided() <-chan struct{}
	Subscribe() *signal.Subscription
}

// Kubelet knows how the kubelet is configured: the policy is empty while it is not known.
type Kubelet interface {
	TopologyManagerPolicy() string
	Subscribe() *signal.Subscription
}

// Deps are the dependencies of a Syncer.
type Deps struct {
	NodeName string
	// Vendor is the vendor whose GPUs the configuration can exclude.
	Vendor string
	// Ready are closed when the object may be published: when the ledger was compared with the node, and the GPUNode before was read.
	Ready      []<-chan struct{}
	Hardware   inventory.Hardware
	Ledger     Ledger
	Devices    Devices
	Config     Config
	Conditions Conditions
	Problems   Problems
	// Gate is the state of the gate.
	Gate    Gate
	Kubelet Kubelet
	// Publish receives the newest object. It must not block.
	Publish func(*v1alpha1.GPUNode)
}

// Syncer is the actor. Create it with New, start it with Run.
type Syncer struct{ deps Deps }

// New returns a Syncer.
func New(deps Deps) *Syncer { return &Syncer{deps} }

// Run publishes until ctx ends, from the first comparison of the ledger and the first decision of the gate on.
func (s *Syncer) Run(ctx context.Context) error {
	// An object without a gate says that the node needs no validation.
	for _, ready := range append(slices.Clone(s.deps.Ready), s.deps.Gate.Decided()) {
		select {
		case <-ctx.Done():
			return nil
		case <-ready:
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	wake := signal.New()
	group.Go(func() error {
		return signal.Join(ctx, wake, s.deps.Hardware.Subscribe, s.deps.Ledger.Subscribe, s.deps.Devices.SubscribeUse,
			s.deps.Conditions.Subscribe, s.deps.Problems.Subscribe, s.deps.Gate.Subscribe, s.deps.Kubelet.Subscribe)
	})
	group.Go(func() error {
		for signal.Settled(ctx, wake, settle) == nil {
			s.deps.Publish(s.build())
		}
		return nil
	})
	return group.Wait()
}

// build computes the present object.
func (s *Syncer) build() *v1alpha1.GPUNode {
	snapshot := *s.deps.Hardware.Current()
	snapshot.Faults = s.deps.Problems.All()
	var holdings []gpu.Holding
	for _, h := range s.deps.Ledger.Holdings() {
		// The pod of a pending holding is not known yet.
		if h.Holder.Kind != gpu.HolderPod || h.Holder.PodUID != "" {
			holdings = append(holdings, h.Holding)
		}
	}
	now := s.deps.Config.Current()
	return gpunode.Build(s.deps.NodeName, gpunode.Input{
		AgentVersion: version.Current().Version, Snapshot: &snapshot, Holdings: holdings, Offered: offered(s.deps.Devices.Units()),
		Excluded: config.Excluded(snapshot.Of(s.deps.Vendor), now.Config), Conditions: s.deps.Conditions.All(),
		Config: v1alpha1.GPUConfigStatus{Source: now.Source, MIGLayout: now.MIG.Layout, MIGConfigMap: now.Config.MIGConfigMap,
			SharedDevicesAllocationPolicy: now.Config.SharedDevicesAllocationPolicy},
		Gate: s.deps.Gate.Status(), TopologyManagerPolicy: s.deps.Kubelet.TopologyManagerPolicy(),
	})
}

// offered converts the use of each device to the API's type.
func offered(units []offer.Unit) map[gpu.UUID]v1alpha1.DeviceOffer {
	out := map[gpu.UUID]v1alpha1.DeviceOffer{}
	for _, unit := range units {
		use := unit.Use
		made := v1alpha1.DeviceOffer{
			Resource: use.Resource, Sharing: string(use.Mode), Replicas: use.Replicas, TimeSlice: use.TimeSlice, API: string(use.API),
			RefusesMany: use.RefuseMany, Draining: unit.Draining,
		}
		if use.Mode == offer.MPS {
			made.ClaimMPSLimits = v1alpha1.ClaimMPSLimits(use.MPSLimits)
		}
		out[unit.Key.Device()] = made
	}
	return out
}
