package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/gpunode"
	"github.com/berth-gpu/berth/internal/ledger"
	"github.com/berth-gpu/berth/internal/offer"
)

// unitsFile keeps as what each device was given out, over a restart of the agent: the
// kubelet's memory has names of devices, and only this file tells a time-sliced share of
// one name from an MPS share of the same.
const unitsFile = "units.json"

// units are the devices of the node with the use that is in force. One goroutine settles
// them; everybody reads.
type units struct {
	path, bootID string
	mu           sync.Mutex // one settlement at a time
	current      atomic.Pointer[[]offer.Unit]
}

// unitsForm is the file's content.
type unitsForm struct {
	Version int          `json:"version"`
	BootID  string       `json:"bootID"`
	Units   []offer.Unit `json:"units"`
}

// openUnits reads what was in force before. After a reboot nothing was: no container is left.
func openUnits(stateDir, bootID string) *units {
	u := &units{path: filepath.Join(stateDir, unitsFile), bootID: bootID}
	var form unitsForm
	blob, err := os.ReadFile(u.path)
	if err != nil || json.Unmarshal(blob, &form) != nil || form.Version != 1 || form.BootID != bootID {
		form.Units = nil
	}
	u.current.Store(&form.Units)
	return u
}

// now are the units in force. They are only read.
func (u *units) now() []offer.Unit { return *u.current.Load() }

// keep writes the units down before they take effect, so that no restart forgets a share
// that somebody may hold.
func (u *units) keep(next []offer.Unit) error {
	blob, err := json.Marshal(unitsForm{Version: 1, BootID: u.bootID, Units: next})
	if err != nil {
		return fmt.Errorf("keep units: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(u.path), 0o700); err != nil {
		return fmt.Errorf("keep units: %w", err)
	}
	if err := renameio.WriteFile(u.path, blob, 0o600); err != nil {
		return fmt.Errorf("keep units: %w", err)
	}
	return nil
}

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
	a.board.set("offers", slices.DeleteFunc(problems, func(c gpu.Cause) bool {
		// No trouble where one configuration serves unlike nodes; inspect devices tells it.
		return c.Code == offer.RuleUnused
	})...)
	before := a.units.now()
	next := offer.Settle(snapshot, wanted, before, a.holdersOf(), settings.Changing)
	if slices.Equal(before, next) {
		return false
	}
	if err := a.units.keep(next); err != nil {
		a.board.fail("units", "STATE_UNWRITABLE", err)
	} else {
		a.board.set("units")
	}
	if err := a.fault(StepUnitsKept); err != nil {
		return false
	}
	a.units.current.Store(&next)
	return true
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

// holdings are the ledger's, with the names of pods where anybody knows them.
func (a *Agent) holdings() []gpunode.Holding {
	var named []gpunode.Holding
	for _, h := range a.ledger.Holdings() {
		named = append(named, gpunode.Holding{
			Key: h.Key, Kind: string(h.Holder.Kind), Namespace: h.Holder.Namespace, Pod: h.Holder.Pod,
			PodUID: h.Holder.PodUID, Container: h.Holder.Container, Resource: h.Holder.Resource,
		})
	}
	if entries := a.entries.Load(); entries != nil {
		named = gpunode.Named(named, entries.checkpoint, entries.listed)
	}
	return named
}
