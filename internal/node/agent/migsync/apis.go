package migsync

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// namedResources is how many resources a problem names.
const namedResources = 3

// separateAPIs refuses all wants when the device plugin and DRA would both serve one resource name because of them: which of the two
// serves a pod would change whenever the device plugin stops. changes are the changes of the GPUs that are not as wanted.
func (p *wantPlan) separateAPIs(changes map[gpu.UUID]*mig.GPUPlan) {
	if len(changes) == 0 {
		return
	}
	var resources []string
	causes := map[gpu.UUID]bool{}
	next := partsOfGPU(p.of.Snapshot, changes)
	for _, auto := range config.AutoAPIs(p.of.Config) {
		settings := config.OfferSettings(p.of.Config, auto)
		present := offer.SharedNames(p.of.Snapshot, settings)
		for _, shared := range offer.SharedNames(next, settings) {
			changed := changedFor(shared, present, changes)
			if len(changed) == 0 {
				continue
			}
			resources = append(resources, shared.Resource)
			for _, id := range changed {
				causes[id] = true
			}
		}
	}
	slices.Sort(resources)
	resources = slices.Compact(resources)
	if len(resources) == 0 {
		return
	}
	var sources, indices []string
	for _, want := range p.Wants {
		if causes[want.UUID] {
			indices = append(indices, strconv.Itoa(p.of.Snapshot.GPU(want.UUID).Index))
			if !slices.Contains(sources, want.Source) {
				sources = append(sources, want.Source)
			}
		}
	}
	p.TwoAPIs = fmt.Errorf("with the change of GPU %s to %s, both the device plugin and DRA would serve %s on this node, so no MIG layout is applied: give the devices of the device plugin another name (resourceName in a rule of gpus or migDevices), allocate all devices of the name through one API (allocation.api), or choose another layout",
		strings.Join(indices, ", "), strings.Join(sources, ", "), phrase.Some(resources, namedResources))
	p.refuse("MIG_LAYOUT_TWO_APIS", p.TwoAPIs)
	p.Wants = nil
	clear(p.Modes)
	clear(p.Differing)
}

// changedFor returns the GPUs whose changes let both APIs serve a name: those that have the name, or all that change where devices of
// other GPUs get the name, as when migStrategy single stops applying. It returns none when the same GPUs share the name now.
func changedFor(shared offer.SharedName, present []offer.SharedName, changes map[gpu.UUID]*mig.GPUPlan) []gpu.UUID {
	changed := slices.DeleteFunc(slices.Clone(shared.GPUs), func(id gpu.UUID) bool { return changes[id] == nil })
	if len(changed) > 0 {
		return changed
	}
	already := func(now offer.SharedName) bool {
		added := func(id gpu.UUID) bool { return !slices.Contains(now.GPUs, id) }
		return now.Resource == shared.Resource && !slices.ContainsFunc(shared.GPUs, added)
	}
	if slices.ContainsFunc(present, already) {
		return nil
	}
	return slices.Collect(maps.Keys(changes))
}

// partsOfGPU returns the hardware when the changes are done. The MIG devices that they create have the free indices, in the order of their
// placements; the driver may give them others.
func partsOfGPU(snapshot *gpu.Snapshot, changes map[gpu.UUID]*mig.GPUPlan) *gpu.Snapshot {
	next := *snapshot
	next.GPUs = slices.Clone(next.GPUs)
	for i := range next.GPUs {
		device := &next.GPUs[i]
		if change := changes[device.UUID]; change != nil {
			device.MIG.Enabled, device.MIG.Unknown = change.Wanted.Enabled, false
			device.MIG.Devices = partsAfter(device, change)
		}
	}
	return &next
}

// partsAfter returns the MIG devices of a GPU after a change.
func partsAfter(device *gpu.GPU, change *mig.GPUPlan) []gpu.MIGDevice {
	var parts []gpu.MIGDevice
	for _, part := range device.MIG.Devices {
		if slices.ContainsFunc(change.Keep, func(kept mig.Instance) bool { return kept.GI == part.GI }) {
			parts = append(parts, part)
		}
	}
	created := slices.Clone(change.Create)
	if change.Unplanned {
		for _, profile := range slices.Sorted(maps.Keys(change.Wanted.Devices)) {
			for range change.Wanted.Devices[profile] {
				created = append(created, mig.Placed{Profile: profile, Start: len(created)})
			}
		}
	}
	index := 0
	for _, at := range created {
		for slices.ContainsFunc(parts, func(part gpu.MIGDevice) bool { return part.Index == index }) {
			index++
		}
		parts = append(parts, gpu.MIGDevice{Start: at.Start, Size: at.Size, Partition: gpu.Partition{
			UUID: gpu.UUID(fmt.Sprintf("%s at %s", device.UUID, at)), Profile: at.Profile, Index: index,
		}})
	}
	return parts
}
