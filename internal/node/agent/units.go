package agent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// wireAllocatable makes the owner of what can be allocated.
func (a *Agent) wireAllocatable(bootID string) {
	var read statefile.Result
	a.allocatable, read = allocatable.Open(allocatable.Deps{
		StateDir: a.config.StateDir, BootID: bootID,
		Inventory: a.inventory, Settings: settingsSource{a.watch}, Holders: holderSource{a}, Changing: a.changing,
		Report: a.problemList.Set, Fault: func(step allocatable.Step) error { return a.fault(Step(step)) },
	})
	if read.Lost() {
		a.stateLost("units-file", read, "a GPU that is in use keeps its resource and is not allocated to others until it is free")
	}
}

// settingsSource is the configuration as allocatable reads it.
type settingsSource struct{ watch *configwatch.Watcher }

// Current implements allocatable.Settings.
func (s settingsSource) Current() (offer.Settings, bool) {
	now := s.watch.Current()
	return config.OfferSettings(now.Config), !now.Waiting
}

// Subscribe implements allocatable.Settings.
func (s settingsSource) Subscribe() *signal.Subscription { return s.watch.Subscribe() }

// holderSource is the ledger as allocatable reads it.
type holderSource struct{ agent *Agent }

// Names implements allocatable.Holders.
func (s holderSource) Names() func(gpu.DeviceKey) []string { return s.agent.holdersOf() }

// Held implements allocatable.Holders.
func (s holderSource) Held() []offer.Held { return s.agent.held() }

// Subscribe implements allocatable.Holders.
func (s holderSource) Subscribe() *signal.Subscription { return s.agent.ledger.Subscribe() }

// stateLost reports a state file that could not be used, and what the agent does without it. The problem
// stands until the source is set again.
func (a *Agent) stateLost(source string, result statefile.Result, without string) {
	err := fmt.Errorf("%w; %s", result.Err, without)
	a.problemList.SetError(source, result.Code(), err)
	a.events.Publish(nodeapi.StateLost(err.Error()))
}

// held are the devices that somebody holds. Berth's own maintenance does not count.
func (a *Agent) held() []offer.Held {
	var held []offer.Held
	for _, h := range a.ledger.Holdings() {
		if h.Holder.Kind != ledger.Maintenance {
			held = append(held, offer.Held{Key: h.Key, Resource: h.Holder.Resource})
		}
	}
	return held
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// keysOn are the keys under which a card is offered now: whole, in parts, in shares.
func (a *Agent) keysOn(card gpu.UUID) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, o := range offer.Build(a.inventory.Current(), a.allocatable.Units()) {
		for _, device := range o.Devices {
			if device.Key.GPU == card {
				keys = append(keys, device.Key)
			}
		}
	}
	return keys
}

// holdersOf answers who holds a device, a part of it, or what it is a part of, as phrases
// for people. Berth's own maintenance does not count.
func (a *Agent) holdersOf() func(gpu.DeviceKey) []string {
	named := a.holdings()
	return func(key gpu.DeviceKey) []string {
		var phrases []string
		for _, h := range named {
			if h.Kind != string(ledger.Maintenance) && sharesSilicon(key, h.Key) {
				phrases = append(phrases, phrase(h))
			}
		}
		slices.Sort(phrases)
		return slices.Compact(phrases)
	}
}

// sharesSilicon tells whether one key is the other, a part of it, or a sibling share.
func sharesSilicon(a, b gpu.DeviceKey) bool {
	return a.GPU == b.GPU && (a.MIG == b.MIG || a.MIG == "" || b.MIG == "")
}

func phrase(h gpunode.Holding) string {
	switch {
	case h.Kind == string(ledger.Claim):
		return "ResourceClaim " + cmp.Or(h.Pod, h.PodUID, "unknown")
	case h.Pod != "":
		return h.Namespace + "/" + h.Pod
	case h.PodUID != "":
		return "pod " + h.PodUID
	}
	return "a pod that is being admitted"
}

// holdings are the ledger's, in the words of the GPUNode.
func (a *Agent) holdings() []gpunode.Holding {
	var named []gpunode.Holding
	for _, h := range a.ledger.Holdings() {
		named = append(named, gpunode.Holding{
			Key: h.Key, Kind: string(h.Holder.Kind), Namespace: h.Holder.Namespace, Pod: h.Holder.Pod,
			PodUID: h.Holder.PodUID, Container: h.Holder.Container, Resource: h.Holder.Resource,
		})
	}
	return named
}
