package offer

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// separateAPIs refuses devices of DRA whose resource the device plugin advertises on this node too. The scheduler takes
// the device plugin wherever the node's allocatable count of the name is above zero, and DRA otherwise: which of the two
// serves a pod would change whenever the device plugin stops. A device of a GPU that is to have another layout is the one that is
// not advertised, and that is no problem: it will not exist.
func (r *resolver) separateAPIs(gpus []namedGPU) {
	passes := func(unit *Unit) bool { return r.settings.Repartitioned[unit.Key.GPU] != "" && unit.Key.MIG != "" }
	plugin, dra := map[string]bool{}, map[string]bool{}
	for i := range r.units {
		unit := &r.units[i]
		switch {
		case unit.Use.API == DevicePlugin && !passes(unit):
			plugin[unit.Use.Resource] = true
		case unit.Use.API == DRA && !passes(unit):
			for _, resource := range served(gpus, unit) {
				dra[resource] = true
			}
		}
	}
	r.units = slices.DeleteFunc(r.units, func(unit Unit) bool {
		return passes(&unit) && (unit.Use.API == DRA && plugin[unit.Use.Resource] || unit.Use.API == DevicePlugin && dra[unit.Use.Resource])
	})
	for i := range r.units { // Of two such devices that of the device plugin is advertised.
		plugin[r.units[i].Use.Resource] = plugin[r.units[i].Use.Resource] || r.units[i].Use.API == DevicePlugin
	}
	r.units = slices.DeleteFunc(r.units, func(unit Unit) bool { return passes(&unit) && unit.Use.API == DRA && plugin[unit.Use.Resource] })
	units := r.units
	r.units = nil
	for _, unit := range units {
		resources := served(gpus, &unit)
		both := slices.IndexFunc(resources, func(resource string) bool { return plugin[resource] })
		if unit.Use.API == DevicePlugin || both < 0 {
			r.units = append(r.units, unit)
			continue
		}
		kind, index := describe(gpus, unit.Key)
		sentence := fmt.Sprintf("DRA would serve %s, which the device plugin advertises for other devices of this node; give those another resourceName, or allocate all of them through one API",
			resources[both])
		r.refused = append(r.refused, refusedDevice{unit.Key, fmt.Sprintf("%s %s would not be offered: %s", kind, index, sentence)})
		r.problems.add(ResourceTwoAPIs, kind, index, "not offered: "+sentence)
	}
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
