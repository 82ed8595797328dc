// Package quota decides which names a ResourceQuota has to limit, so that it limits devices.
//
// It guarantees that
//   - each name of the result is one that the API server counts;
//   - a name of which no device is known is limited by each limit that can select one: what is requested now may get a device later;
//   - a name that was limited stays limited, whatever devices come or go;
//   - else a limit is never applied to a device that it does not select: a name that other devices share is left out and reported.
//
// The order of its inputs does not matter. It must not import anything but the standard library.
package quota

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
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
	// Kinds are the kinds that its devices have when some are known; none means any.
	Kinds []Kind
	// Stays is true for what was limited before, on account of its devices.
	Stays bool
}

// The forms of the names under which the API server counts.
const (
	requests        = "requests."
	claimsOfClass   = ".deviceclass.resource.k8s.io/devices"
	implicitOfClass = requests + "deviceclass.resource.kubernetes.io/"
)

// Resource is an extended resource: nvidia.com/gpu. Only with the prefix requests. does the API server count it.
func Resource(name string, devices ...Device) Counted {
	return Counted{Name: name, Keys: []string{requests + name}, Devices: devices}
}

// Class is a DeviceClass. Claims of it are counted under one name, and extended resources that it serves under another.
func Class(name string, devices ...Device) Counted {
	return Counted{Name: name, Keys: []string{name + claimsOfClass, implicitOfClass + name}, Devices: devices}
}

// Known returns what is counted under one of its keys; false for a key of nothing that this package makes, such as pods.
func Known(key string) (Counted, bool) {
	if class, ok := strings.CutSuffix(key, claimsOfClass); ok && class != "" {
		return Class(class), true
	}
	if class, ok := strings.CutPrefix(key, implicitOfClass); ok && class != "" {
		return Class(class), true
	}
	name, ok := strings.CutPrefix(key, requests)
	return Resource(name), ok && strings.Contains(name, "/")
}

// Of returns it with the kinds that its devices have.
func (c Counted) Of(kinds ...Kind) Counted {
	c.Kinds = kinds
	return c
}

// kinds returns the kinds of its devices, sorted.
func (c Counted) kinds() []Kind {
	kinds := slices.Clone(c.Kinds)
	for _, d := range c.Devices {
		kinds = append(kinds, d.Kind)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Staying returns it as limited before.
func (c Counted) Staying() Counted {
	c.Stays = true
	return c
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

// can reports whether a limit can select a device of the kinds.
func (l Limit) can(kinds []Kind) bool {
	return l.Kind == "" || len(kinds) == 0 || slices.Contains(kinds, l.Kind)
}

// Plan is what a ResourceQuota has to limit.
type Plan struct {
	// Hard is the most of each name.
	Hard map[string]int64
	// Stay has what is limited on account of devices that are or were known: the first key of each, with the kinds of these devices.
	Stay map[string][]Kind
	// Shared says which names could not be limited, since devices that the limit does not select have the same.
	Shared []string
}

// Make returns the plan of limits. Of several limits of a name the smallest holds.
func Make(limits []Limit, all []Counted) Plan {
	plan := Plan{Hard: map[string]int64{}, Stay: map[string][]Kind{}}
	shared := map[string]bool{}
	for _, c := range merge(all) {
		holding, others := c.limitedBy(limits)
		for _, d := range others {
			shared[fmt.Sprintf("%s is also %s (%s)", c.Name, d.Model, d.Kind)] = true
		}
		if len(holding) > 0 && (len(c.Devices) > 0 || c.Stays) {
			plan.Stay[c.Keys[0]] = c.kinds()
		}
		for _, l := range holding {
			for _, key := range c.Keys {
				if old, ok := plan.Hard[key]; !ok || l.Max < old {
					plan.Hard[key] = l.Max
				}
			}
		}
	}
	plan.Shared = slices.Sorted(maps.Keys(shared))
	return plan
}

// limitedBy returns the limits that hold for a name: those that select all its devices. Where none does, and no device is known or the name
// stays limited, those that can select one. others has, for each limit that selects only some of the devices, one that it does not select.
func (c Counted) limitedBy(limits []Limit) (holding []Limit, others []Device) {
	var possible []Limit
	for _, l := range limits {
		other := slices.IndexFunc(c.Devices, func(d Device) bool { return !l.selects(d) })
		switch {
		case len(c.Devices) > 0 && other < 0:
			holding = append(holding, l)
		case slices.ContainsFunc(c.Devices, l.selects):
			others = append(others, c.Devices[other])
		}
		if l.can(c.Kinds) {
			possible = append(possible, l)
		}
	}
	if len(holding) == 0 && (len(c.Devices) == 0 || c.Stays) {
		holding = possible
	}
	return holding, others
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
		have.Stays = have.Stays || c.Stays
		have.Kinds = append(have.Kinds, c.Kinds...)
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
