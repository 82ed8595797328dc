package offer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// separateAPIs refuses devices of DRA whose resource the device plugin advertises on this node too. The scheduler takes
// the device plugin wherever the node's allocatable count of the name is above zero, and DRA otherwise: which of the two
// serves a pod would change whenever the device plugin stops. A device of a GPU that is to have another layout is the one that is
// not advertised, and that is no problem: it will not exist.
func (r *resolver) separateAPIs(gpus []namedGPU) {
	passing := func(unit *Unit) bool { return r.settings.Repartitioned[unit.Key.GPU] && unit.Key.MIG != "" }
	dra := r.names(gpus, DRA, func(unit *Unit) bool { return !passing(unit) })
	r.drop(func(unit *Unit) bool { return unit.Use.API == DevicePlugin && passing(unit) && dra[unit.Use.Resource] })
	// Of two such devices that of the device plugin is advertised.
	plugin := r.names(gpus, DevicePlugin, func(*Unit) bool { return true })
	r.drop(func(unit *Unit) bool { return unit.Use.API == DRA && passing(unit) && plugin[unit.Use.Resource] })
	r.shared = r.sharedNames(gpus, dra, plugin)
	r.drop(func(unit *Unit) bool {
		resources := served(gpus, unit)
		both := slices.IndexFunc(resources, func(resource string) bool { return plugin[resource] })
		if unit.Use.API == DevicePlugin || both < 0 {
			return false
		}
		kind, index := describe(gpus, unit.Key)
		sentence := fmt.Sprintf("DRA would serve %s, which the device plugin advertises for other devices of this node; give those another resourceName, or allocate all of them through one API",
			resources[both])
		r.refused = append(r.refused, refusedDevice{unit.Key, fmt.Sprintf("%s %s would not be offered: %s", kind, index, sentence)})
		r.problems.add(ResourceTwoAPIs, kind, index, "not offered: "+sentence)
		return true
	})
}

// SharedName is a resource name that devices of both APIs have.
type SharedName struct {
	Resource string
	// GPUs are those with the devices, in the order of their index.
	GPUs []gpu.UUID
}

// SharedNames returns the names that the devices of both APIs would have, sorted. Resolve does not offer those of DRA.
func SharedNames(snapshot *gpu.Snapshot, settings Settings) []SharedName {
	return resolve(snapshot, settings).shared
}

// sharedNames returns the names of both APIs with the GPUs.
func (r *resolver) sharedNames(gpus []namedGPU, dra, plugin map[string]bool) []SharedName {
	var shared []SharedName
	for _, name := range slices.Sorted(maps.Keys(dra)) {
		if !plugin[name] {
			continue
		}
		one := SharedName{Resource: name}
		for i := range gpus {
			if slices.ContainsFunc(r.units, func(u Unit) bool { return u.Key.GPU == gpus[i].UUID && slices.Contains(served(gpus, &u), name) }) {
				one.GPUs = append(one.GPUs, gpus[i].UUID)
			}
		}
		shared = append(shared, one)
	}
	return shared
}

// names returns the resources that units of an API serve.
func (r *resolver) names(gpus []namedGPU, api API, of func(*Unit) bool) map[string]bool {
	names := map[string]bool{}
	for i := range r.units {
		if unit := &r.units[i]; unit.Use.API == api && of(unit) {
			for _, resource := range served(gpus, unit) {
				names[resource] = true
			}
		}
	}
	return names
}

// drop removes units.
func (r *resolver) drop(which func(*Unit) bool) {
	r.units = slices.DeleteFunc(r.units, func(unit Unit) bool { return which(&unit) })
}

// served returns the resources that a unit serves: with MIG devices on demand also that of each profile.
func served(gpus []namedGPU, unit *Unit) []string {
	resources := []string{unit.Use.Resource}
	if !unit.Use.DynamicMIG {
		return resources
	}
	for i := range gpus {
		if gpus[i].UUID != unit.Key.GPU {
			continue
		}
		for _, profile := range gpus[i].MIG.Geometry.Profiles {
			resources = append(resources, MIGResource(profile.Name))
		}
	}
	return resources
}

// describe returns the kind and the index of a device for a problem.
func describe(gpus []namedGPU, key gpu.DeviceKey) (kind, index string) {
	for i := range gpus {
		if gpus[i].UUID != key.GPU {
			continue
		}
		for _, part := range gpus[i].parts {
			if part.UUID == key.MIG {
				return "MIG device", gpus[i].partIndex(part)
			}
		}
		return "GPU", gpus[i].index()
	}
	return "device", string(key.Device())
}
