package migapply

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// maintenance is the holder under which this package acquires devices.
func maintenance() gpu.Holder { return gpu.Holder{Kind: gpu.HolderMaintenance, ID: HolderID} }

// Maintains reports whether a holder is this package, which ends its maintenance when the change is done.
func Maintains(holder gpu.Holder) bool { return holder.Same(maintenance()) }

// holdings are the ledger's holdings at a moment.
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

func anyHolder(gpu.Holder) bool { return true }

func notClaim(holder gpu.Holder) bool { return holder.Kind != gpu.HolderClaim }

// holders returns the names of those who hold a GPU or MIG device, or a replica of it, and are counted.
func (h *holdings) holders(device gpu.DeviceKey, counted func(gpu.Holder) bool) []string {
	var names []string
	for _, one := range h.others {
		if one.Key.Unshared() == device && counted(one.Holder) {
			names = append(names, holder(one))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// withHolders is a GPU of a snapshot with the holders of its devices. A held MIG device that the scan does not list may
// belong to any instance that looks empty. With beside, a claim that has the whole GPU is no holder.
func (h *holdings) withHolders(device *gpu.GPU, beside bool) mig.GPU {
	c := mig.GPUOf(device, func(key gpu.DeviceKey) []string { return h.holders(key, anyHolder) })
	if beside {
		c.Holders = h.holders(gpu.DeviceKey{GPU: device.UUID}, notClaim)
	}
	var unlisted []string
	for _, one := range h.others {
		listed := slices.ContainsFunc(device.MIG.Devices, func(d gpu.MIGDevice) bool { return d.UUID == one.Key.MIG })
		if one.Key.GPU == device.UUID && one.Key.MIG != "" && !listed {
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

// free reports whether no other holder has a device that overlaps a key.
func (h *holdings) free(key gpu.DeviceKey) bool {
	return !slices.ContainsFunc(h.others, func(one ledger.Holding) bool { return key.Overlaps(one.Key) })
}

// take returns the keys that have to be acquired before a plan is carried out; none for work that affects no holder. While
// another holder has a placement, in which a MIG device is about to be made, these are also the placements of the instances
// that the plan creates.
func (j *job) take(now *holdings) []gpu.DeviceKey {
	if !j.plan.Changes() {
		return nil
	}
	if j.want.Claims {
		return j.takeBesideClaims(now)
	}
	if j.plan.SetMode != nil || j.plan.Reset || len(j.plan.Keep) == 0 {
		return []gpu.DeviceKey{{GPU: j.want.UUID}}
	}
	keys := j.leaving()
	if now.placed(j.want.UUID) {
		for _, made := range j.plan.Create {
			keys = append(keys, gpu.Placed(j.want.UUID, gpu.Placement{Start: made.Start, Size: made.Size}))
		}
	}
	return keys
}

// takeBesideClaims is take for a state that follows from claims: the devices that change, without those that a claim keeps from
// all other holders. These are the devices in a placement that the plan creates, and with MIG off every device, when a claim
// holds that placement or the GPU.
//
// A claim that acquired a device of the plan after the state was computed is not among these, so that the ledger refuses the
// maintenance. A claim that is released later leaves a change that the next state undoes, before another claim can use the GPU.
func (j *job) takeBesideClaims(now *holdings) []gpu.DeviceKey {
	var created []gpu.DeviceKey
	for _, made := range j.plan.Create {
		created = append(created, gpu.Placed(j.want.UUID, gpu.Placement{Start: made.Start, Size: made.Size}))
	}
	keys := slices.Concat(j.leavingAt(), located(created))
	if j.plan.SetMode != nil {
		keys = located([]gpu.DeviceKey{{GPU: j.want.UUID}})
	}
	var left []gpu.DeviceKey
	for _, key := range keys {
		kept := slices.ContainsFunc(now.others, func(one ledger.Holding) bool {
			reason := one.Key.Whole() && !j.want.Wanted.Enabled || slices.Contains(created, one.Key)
			return one.Holder.Kind == gpu.HolderClaim && reason && key.Overlaps(one.Located())
		})
		if !kept {
			left = append(left, key.Key)
		}
	}
	return left
}

func located(keys []gpu.DeviceKey) []gpu.Located {
	var all []gpu.Located
	for _, key := range keys {
		all = append(all, gpu.Located{Key: key})
	}
	return all
}

// leavingAt is leaving with the placements.
func (j *job) leavingAt() []gpu.Located {
	all := located(j.leaving())
	for i := range all {
		for _, device := range j.device.MIG.Devices {
			if device.UUID == all[i].Key.MIG {
				all[i].At = gpu.Placement{Start: device.Start, Size: device.Size}
			}
		}
	}
	return all
}

// placed reports whether another holder has a placement of a GPU.
func (h *holdings) placed(id gpu.UUID) bool {
	return slices.ContainsFunc(h.others, func(one ledger.Holding) bool { return one.Key.GPU == id && one.Key.Placement.Known() })
}

// leaving returns the MIG devices that the plan destroys. One GPU instance may have several that another program
// created.
func (j *job) leaving() []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, device := range j.device.MIG.Devices {
		for _, gone := range j.plan.Destroy {
			if gone.GI == device.GI {
				keys = append(keys, gpu.DeviceKey{GPU: j.want.UUID, MIG: device.UUID})
				break
			}
		}
	}
	return keys
}

// going returns the devices that the plan withholds, as replicas where they are advertised as such: each released
// replica is withheld from the next pod.
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

// block acquires the free ones among the devices that will be removed.
func (r *round) block(j *job) error {
	now := r.holdings()
	wanted := slices.DeleteFunc(r.going(j), func(key gpu.DeviceKey) bool { return !now.free(key) })
	for {
		err := r.hold(j.want.UUID, wanted)
		var blocked *ledger.BlockedError
		if !errors.As(err, &blocked) {
			return err
		}
		// Another holder acquired this one first.
		wanted = slices.DeleteFunc(wanted, func(key gpu.DeviceKey) bool { return key.Overlaps(blocked.Key) })
	}
}

// hold acquires exactly these keys of a GPU and releases others. When it fails, no more keys are held than before.
func (r *round) hold(id gpu.UUID, wanted []gpu.DeviceKey) error {
	own := r.holdings().own[id]
	missing := without(wanted, own)
	extra := without(own, wanted)
	if len(missing) > 0 {
		if err := r.deps.Ledger.Acquire(maintenance(), missing); err != nil {
			return err
		}
		if err := r.step(StepBlocked); err != nil {
			return err
		}
	}
	return r.release(extra)
}

func (r *round) release(keys []gpu.DeviceKey) error {
	if len(keys) == 0 {
		return nil
	}
	if err := r.deps.Ledger.Release(maintenance(), keys); err != nil {
		// It is released in memory. If the agent ends before the ledger is written again, the next one finds
		// maintenance without a reason and ends it.
		r.deps.Log.Warn("Ended MIG maintenance, but failed to write the ledger", "error", err)
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

// releaseStrays ends the maintenance of GPUs for which no change is wanted or in progress.
func (r *round) releaseStrays() error {
	var strays []gpu.DeviceKey
	for id, keys := range r.holdings().own {
		if !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == id }) {
			strays = append(strays, keys...)
		}
	}
	slices.SortFunc(strays, gpu.CompareKeys)
	return r.release(strays)
}
