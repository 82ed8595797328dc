package migapply

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// me is this package in the ledger.
func me() gpu.Holder { return gpu.Holder{Kind: gpu.HolderMaintenance, ID: HolderID} }

// holdings are those of the ledger at a moment.
type holdings struct {
	own    map[gpu.UUID][]gpu.DeviceKey
	others []ledger.Holding
}

func (p *Partition) holdings() *holdings {
	h := &holdings{own: map[gpu.UUID][]gpu.DeviceKey{}}
	for _, one := range p.deps.Ledger.Holdings() {
		if one.Holder.Kind == gpu.HolderMaintenance && one.Holder.ID == HolderID {
			h.own[one.Key.GPU] = append(h.own[one.Key.GPU], one.Key)
			continue
		}
		h.others = append(h.others, one)
	}
	return h
}

// holders name those who hold a card or MIG device, or a share of it.
func (h *holdings) holders(device gpu.DeviceKey) []string {
	var names []string
	for _, one := range h.others {
		if one.Key.GPU == device.GPU && one.Key.MIG == device.MIG {
			names = append(names, holder(one))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// card is a GPU of a snapshot with those who hold something of it. Of a held MIG device that the scan does not list nobody
// knows which instance it is of, so it may be any that looks empty.
func (h *holdings) card(card *gpu.GPU) mig.GPU {
	c := mig.GPUOf(card, h.holders)
	var unlisted []string
	for _, one := range h.others {
		listed := slices.ContainsFunc(card.MIG.Devices, func(d gpu.MIGDevice) bool { return d.UUID == one.Key.MIG })
		if one.Key.GPU == card.UUID && one.Key.MIG != "" && !listed {
			unlisted = append(unlisted, holder(one))
		}
	}
	slices.Sort(unlisted)
	unlisted = slices.Compact(unlisted)
	for i := range c.Instances {
		if c.Instances[i].UUID == "" {
			c.Instances[i].Holders = unlisted
		}
	}
	return c
}

// free tells whether nobody else holds anything of a key's silicon.
func (h *holdings) free(key gpu.DeviceKey) bool {
	return !slices.ContainsFunc(h.others, func(one ledger.Holding) bool { return key.Overlaps(one.Key) })
}

// take are the keys that have to be ours before a plan is carried out; none for work that
// disturbs nobody.
func (j *job) take() []gpu.DeviceKey {
	if !j.plan.Changes() {
		return nil
	}
	if j.plan.SetMode != nil || j.plan.Reset || len(j.plan.Keep) == 0 {
		return []gpu.DeviceKey{{GPU: j.want.UUID}}
	}
	return j.leaving()
}

// leaving are the MIG devices that the plan destroys. There may be several in one GPU
// instance, when somebody else made them.
func (j *job) leaving() []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, device := range j.card.MIG.Devices {
		for _, gone := range j.plan.Destroy {
			if gone.GI == device.GI {
				keys = append(keys, gpu.DeviceKey{GPU: j.want.UUID, MIG: device.UUID})
				break
			}
		}
	}
	return keys
}

// going are the devices that the plan takes from the offers: in shares where they are offered so, as
// each share that ends is to be kept from the next pod.
func (r *round) going(j *job) []gpu.DeviceKey {
	devices := j.leaving()
	if j.plan.SetMode != nil {
		devices = append(devices, gpu.DeviceKey{GPU: j.want.UUID})
	}
	var offered []gpu.DeviceKey
	if r.deps.Devices != nil {
		offered = r.deps.Devices(j.want.UUID)
	}
	var keys []gpu.DeviceKey
	for _, device := range devices {
		shares := false
		for _, key := range offered {
			if key.Share > 0 && key.GPU == device.GPU && key.MIG == device.MIG {
				keys, shares = append(keys, key), true
			}
		}
		if !shares {
			keys = append(keys, device)
		}
	}
	return keys
}

// bar takes from the ledger what is free of the devices that will go.
func (r *round) bar(j *job) error {
	now := r.holdings()
	wanted := slices.DeleteFunc(r.going(j), func(key gpu.DeviceKey) bool { return !now.free(key) })
	for {
		err := r.hold(j.want.UUID, wanted)
		var barred *ledger.BarredError
		if !errors.As(err, &barred) {
			return err
		}
		// Somebody was faster with this one.
		wanted = slices.DeleteFunc(wanted, func(key gpu.DeviceKey) bool { return key.Overlaps(barred.Key) })
	}
}

// hold makes exactly these keys of a card ours. When that fails nothing more is ours than before.
func (r *round) hold(card gpu.UUID, wanted []gpu.DeviceKey) error {
	own := r.holdings().own[card]
	missing := without(wanted, own)
	extra := without(own, wanted)
	if len(missing) > 0 {
		if err := r.deps.Ledger.Acquire(me(), missing); err != nil {
			return err
		}
		if err := r.step(StepBarred); err != nil {
			return err
		}
	}
	return r.release(extra)
}

func (r *round) release(keys []gpu.DeviceKey) error {
	if len(keys) == 0 {
		return nil
	}
	if err := r.deps.Ledger.Release(me(), keys); err != nil {
		// It stands in memory. Should the agent die before the ledger is written again, the next
		// one finds maintenance without a reason, and ends it.
		r.deps.Log.Warn("MIG maintenance ended, but the ledger could not be written", "error", err)
	}
	return r.step(StepReleased)
}

func without(keys, not []gpu.DeviceKey) []gpu.DeviceKey {
	var left []gpu.DeviceKey
	for _, key := range keys {
		if !slices.Contains(not, key) {
			left = append(left, key)
		}
	}
	return left
}

// releaseStrays ends our maintenance of cards of which nothing is wanted and nothing is under way.
func (r *round) releaseStrays() error {
	var strays []gpu.DeviceKey
	for card, keys := range r.holdings().own {
		if !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == card }) {
			strays = append(strays, keys...)
		}
	}
	slices.SortFunc(strays, gpu.CompareKeys)
	return r.release(strays)
}
