package agent

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// unitsFile keeps as what each device was given out, over a restart of the agent: the
// kubelet's memory has names of devices, and only this file tells a time-sliced share of
// one name from an MPS share of the same.
const unitsFile = "units.json"

// units are the devices of the node with the use that is in force. One goroutine settles
// them; everybody reads.
type units struct {
	file    statefile.File[[]offer.Unit]
	mu      sync.Mutex // one settlement at a time
	current atomic.Pointer[[]offer.Unit]
	// lost is true until the first settlement when there was a file that could not be used.
	lost bool
}

// unitsFileIn is the file in a state directory.
func unitsFileIn(stateDir, bootID string) statefile.File[[]offer.Unit] {
	return statefile.File[[]offer.Unit]{
		Path: filepath.Join(stateDir, unitsFile), What: "what each GPU is used for", Format: "berth-units", Version: 1, BootID: bootID,
	}
}

// openUnits reads what was in force before. After a reboot nothing was: no container is left.
func openUnits(stateDir, bootID string, lost func(source string, result statefile.Result, without string)) *units {
	u := &units{file: unitsFileIn(stateDir, bootID)}
	before, result := u.file.Load()
	u.current.Store(&before)
	if u.lost = result.Lost(); u.lost {
		lost("units-file", result, "a GPU that is in use keeps its resource and is not allocated to others until it is free")
	}
	return u
}

// stateLost reports a state file that could not be used, and what the agent does without it. The problem
// stands until the source is set again.
func (a *Agent) stateLost(source string, result statefile.Result, without string) {
	err := fmt.Errorf("%w; %s", result.Err, without)
	a.problemList.SetError(source, result.Code(), err)
	a.events.warning(eventStateLost, err.Error())
}

// now are the units in force. They are only read.
func (u *units) now() []offer.Unit { return *u.current.Load() }

// settle brings the units in line with hardware, configuration, holders and the changes
// of MIG that are due. It tells whether anything changed.
func (a *Agent) settle() bool {
	a.units.mu.Lock()
	defer a.units.mu.Unlock()
	now := a.watch.Current()
	if now.Waiting || !a.looked.Load() {
		return false // By what, or who holds what, is not known yet.
	}
	snapshot := a.inventory.Current()
	if !snapshot.Driver.Present() {
		return false // What the cards are used for outlasts a driver that does not answer for a moment.
	}
	settings := offerSettings(now.Config)
	settings.Changing = a.changing(snapshot)
	wanted, problems := offer.Resolve(snapshot, settings)
	a.problemList.Set("offers", slices.DeleteFunc(problems, func(c gpu.Cause) bool {
		// No trouble where one configuration serves unlike nodes; inspect devices tells it.
		return c.Code == offer.RuleUnused
	})...)
	before := a.units.now()
	if a.units.lost {
		before = offer.Recover(a.held(), settings.ResourceName)
	}
	next := offer.Settle(snapshot, wanted, before, a.holdersOf(), settings.Changing)
	if slices.Equal(before, next) && !a.units.lost {
		return false
	}
	// Kept before they take effect, so that no restart forgets a share that somebody may hold.
	if err := a.units.file.Save(next); err != nil {
		a.problemList.SetError("units", "STATE_UNWRITABLE", err)
	} else {
		a.problemList.Set("units")
	}
	if err := a.fault(StepUnitsKept); err != nil {
		return false
	}
	a.units.current.Store(&next)
	a.units.lost = false
	if !slices.ContainsFunc(next, func(u offer.Unit) bool { return u.Use.Mode == offer.Unknown }) {
		a.problemList.Set("units-file")
	}
	return true
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

// settled settles and tells everybody who lives on the units.
func (a *Agent) settled() {
	if !a.settle() {
		return
	}
	a.wakePlugin()
	a.sharing.poke()
	a.cdi.Poke()
	a.noteDaemons()
	a.republish.Set() // The GPUNode and the labels show the units.
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
	for _, o := range offer.Build(a.inventory.Current(), a.units.now()) {
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
