// Package quota decides which names a ResourceQuota has to limit, so that it limits devices.
//
// It guarantees that each name of the result is one that the API server counts, and that a limit is never applied to a device that it
// does not select: a name that other devices share is left out and reported. The order of its inputs does not matter. It must not import
// anything but the standard library.
package quota

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
)

// Kind is a kind of device.
type Kind string

// The kinds of devices.
const (
	Whole       Kind = "whole"
	MIG         Kind = "mig"
	TimeSlicing Kind = "timeSlicing"
	MPS         Kind = "mps"
)

// Device is a kind of device of one model.
type Device struct {
	Model string
	Kind  Kind
}

// Counted is something that is requested by a name, with the devices that it can be.
type Counted struct {
	// Name is what users know: the resource, or the DeviceClass.
	Name string
	// Keys are the names under which the API server counts requests.
	Keys    []string
	Devices []Device
}

// Resource is an extended resource: nvidia.com/gpu. Only with the prefix requests. does the API server count it.
func Resource(name string, devices ...Device) Counted {
	return Counted{Name: name, Keys: []string{"requests." + name}, Devices: devices}
}

// Class is a DeviceClass. Claims of it are counted under one name, and extended resources that it serves under another.
func Class(name string, devices ...Device) Counted {
	return Counted{Name: name, Keys: []string{name + ".deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/" + name}, Devices: devices}
}

// Limit is the most of the devices that it selects. An empty Model or Kind selects every.
type Limit struct {
	// Model is a pattern of [path.Match].
	Model string
	Kind  Kind
	Max   int64
}

// selects reports whether a limit selects a device.
func (l Limit) selects(d Device) bool {
	if l.Kind != "" && l.Kind != d.Kind {
		return false
	}
	if l.Model == "" {
		return true
	}
	matched, err := path.Match(l.Model, d.Model)
	return err == nil && matched
}

// Plan is what a ResourceQuota has to limit.
type Plan struct {
	// Hard is the most of each name.
	Hard map[string]int64
	// Shared says which names could not be limited, since devices that the limit does not select have the same.
	Shared []string
}

// Make returns the plan of limits. Of several limits of a name the smallest holds.
func Make(limits []Limit, all []Counted) Plan {
	plan := Plan{Hard: map[string]int64{}}
	shared := map[string]bool{}
	for _, c := range merge(all) {
		for _, l := range limits {
			chosen := 0
			for _, d := range c.Devices {
				if l.selects(d) {
					chosen++
				}
			}
			switch {
			case chosen == 0:
			case chosen < len(c.Devices):
				other := c.Devices[slices.IndexFunc(c.Devices, func(d Device) bool { return !l.selects(d) })]
				shared[fmt.Sprintf("%s is also %s (%s)", c.Name, other.Model, other.Kind)] = true
			default:
				for _, key := range c.Keys {
					if old, ok := plan.Hard[key]; !ok || l.Max < old {
						plan.Hard[key] = l.Max
					}
				}
			}
		}
	}
	plan.Shared = slices.Sorted(maps.Keys(shared))
	return plan
}

// merge joins what has the same keys, and sorts it.
func merge(all []Counted) []Counted {
	byName := map[string]Counted{}
	for _, c := range all {
		have, ok := byName[c.Keys[0]]
		if !ok {
			have = Counted{Name: c.Name, Keys: c.Keys}
		}
		have.Devices = append(have.Devices, c.Devices...)
		byName[c.Keys[0]] = have
	}
	merged := slices.Collect(maps.Values(byName))
	for i := range merged {
		slices.SortFunc(merged[i].Devices, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Kind, b.Kind)) })
		merged[i].Devices = slices.Compact(merged[i].Devices)
	}
	slices.SortFunc(merged, func(a, b Counted) int { return cmp.Compare(a.Keys[0], b.Keys[0]) })
	return merged
}
