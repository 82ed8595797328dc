package validation

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// keyOf returns the key of what is to be validated on a node. It is false when nothing is: the node waits for something else, or a pod
// has validated it. A node that accepts pods for another reason, since its devices were in use or no operator came in time, is validated
// when they are free.
func keyOf(node *v1alpha1.GPUNode) (string, bool) {
	if node == nil || node.DeletionTimestamp != nil || node.Status.Gate == nil {
		return "", false
	}
	g := node.Status.Gate
	waits := g.State == v1alpha1.GateHeld || g.State == v1alpha1.GateValidated && g.By != v1alpha1.GateByPod
	return g.Key, g.Key != "" && waits
}

// accepted reports whether the agent has accepted a pod for the key.
func accepted(node *v1alpha1.GPUNode, key string) bool {
	if node == nil || node.Status.Gate == nil {
		return false
	}
	g := node.Status.Gate
	return g.State == v1alpha1.GateValidated && g.By == v1alpha1.GateByPod && g.Key == key
}

// free reports whether no device of a node has a holder.
func free(node *v1alpha1.GPUNode) bool {
	return !slices.ContainsFunc(node.Status.Devices, func(d v1alpha1.GPUDevice) bool {
		return len(d.Holders) > 0 || slices.ContainsFunc(d.MIGDevices, func(m v1alpha1.MIGDevice) bool { return len(m.Holders) > 0 })
	})
}

// due reports whether a pod can validate a node now.
func due(node *v1alpha1.GPUNode) bool {
	_, wanted := keyOf(node)
	return wanted && free(node) && len(demands(node)) > 0
}

// demand is what one container requests: all devices of one name.
type demand struct {
	resource string
	// dra is true for devices that are allocated through ResourceClaims.
	dra bool
	// devices is the number of devices, and count that of the replicas that are requested.
	devices int64
	count   int64
	// expect is how many devices CUDA enumerates in the container.
	expect int64
	// others is true where the node has further devices of the name, which cannot be requested now.
	others bool
}

// demands returns what the containers request, sorted by resource.
func demands(node *v1alpha1.GPUNode) []demand {
	all := demandsByName{}
	for i := range node.Status.Devices {
		d := &node.Status.Devices[i]
		if d.Excluded {
			continue
		}
		all.add(d.Offered, d.Health.State, false)
		for j := range d.MIGDevices {
			m, health := &d.MIGDevices[j], d.Health.State
			if m.Health != nil {
				health = m.Health.State
			}
			all.add(m.Offered, health, true)
		}
	}
	var sorted []demand
	for _, d := range all {
		if d.devices > 0 {
			sorted = append(sorted, d.request())
		}
	}
	slices.SortFunc(sorted, func(a, b demand) int {
		return cmp.Or(strings.Compare(a.resource, b.resource), cmp.Compare(boolean(a.dra), boolean(b.dra)))
	})
	return sorted
}

// offers are the devices that are advertised under one name.
type offers struct {
	demand
	mig         bool
	refusesMany bool
}

type demandsByName map[string]*offers

// add adds a device.
func (all demandsByName) add(o *v1alpha1.DeviceOffer, health string, mig bool) {
	// Only the names of extended resources have a domain: what else a node reports is none.
	if o == nil || !strings.Contains(o.Resource, "/") {
		return
	}
	name := o.API + " " + o.Resource
	d := all[name]
	if d == nil {
		d = &offers{demand: demand{resource: o.Resource, dra: o.API == "dra"}}
		all[name] = d
	}
	if o.Draining != "" || health != "Healthy" && health != "Degraded" {
		d.others = true
		return
	}
	d.devices++
	d.count += int64(max(1, o.Replicas))
	d.mig, d.refusesMany = d.mig || mig, d.refusesMany || o.RefusesMany
}

// request returns what is requested of them.
func (o *offers) request() demand {
	d := o.demand
	d.expect = d.devices
	if o.refusesMany {
		d.count, d.expect = 1, 1
	}
	if o.mig {
		d.expect = 1 // CUDA enumerates one MIG device for a process, however many it has.
	}
	return d
}

func boolean(b bool) int { return map[bool]int{true: 1}[b] }

// resources returns the names of some demands, sorted, each once.
func resources(all []demand) []string {
	names := map[string]bool{}
	for _, d := range all {
		names[d.resource] = true
	}
	return slices.Sorted(maps.Keys(names))
}
