package fit

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// device is one that a node can use.
type device struct {
	*resourceapi.Device
	driver, pool string
	// own are the claims that hold it, and holders also those that hold a device that uses the same counters; both are sorted.
	own, holders []string
}

// incomplete is a pool without some of its slices.
type incomplete struct {
	driver, pool string
	generation   int64
	have, want   int64
}

// devicesOn returns the devices of the complete pools of a node, in the allocator's order, and the pools that are not complete.
func (c *Checker) devicesOn(node *corev1.Node) (devices []device, missing []incomplete, err error) {
	type key struct{ driver, pool string }
	pools := map[key][]*resourceapi.ResourceSlice{}
	var order []key
	for _, slice := range c.slices {
		k := key{slice.Spec.Driver, slice.Spec.Pool.Name}
		all := pools[k]
		switch {
		case len(all) == 0:
			order = append(order, k)
		case slice.Spec.Pool.Generation < all[0].Spec.Pool.Generation:
			continue
		case slice.Spec.Pool.Generation > all[0].Spec.Pool.Generation:
			all = nil
		}
		pools[k] = append(all, slice)
	}
	slices.SortFunc(order, func(a, b key) int { return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool)) })
	for _, k := range order {
		all := pools[k]
		usable, relevant, err := c.usable(node, all)
		if err != nil {
			return nil, nil, err
		}
		if spec := all[0].Spec.Pool; relevant && int64(len(all)) != spec.ResourceSliceCount {
			missing = append(missing, incomplete{k.driver, k.pool, spec.Generation, int64(len(all)), spec.ResourceSliceCount})
			continue
		}
		devices = append(devices, c.withHolders(k.driver, k.pool, all, usable)...)
	}
	return devices, missing, nil
}

// usable returns the devices of slices that a node can use, and whether a slice is for the node.
func (c *Checker) usable(node *corev1.Node, list []*resourceapi.ResourceSlice) (devices []*resourceapi.Device, relevant bool, _ error) {
	matches := func(name *string, all *bool, selector *corev1.NodeSelector) (bool, error) {
		match, err := structured.NodeMatches(c.settings.Allocator, node, value(name), value(all), selector)
		if err != nil {
			return false, fmt.Errorf("compare a ResourceSlice with node %s: %w", node.Name, err)
		}
		return match, nil
	}
	for _, slice := range list {
		perDevice := value(slice.Spec.PerDeviceNodeSelection)
		if !perDevice {
			match, err := matches(slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector)
			if err != nil {
				return nil, false, err
			}
			if !match {
				continue
			}
			relevant = true
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if perDevice {
				match, err := matches(d.NodeName, d.AllNodes, d.NodeSelector)
				if err != nil {
					return nil, false, err
				}
				if !match {
					continue
				}
				relevant = true
			}
			devices = append(devices, d)
		}
	}
	return devices, relevant, nil
}

// withHolders adds to the devices of a pool the claims that hold them or their counters.
func (c *Checker) withHolders(driver, pool string, all []*resourceapi.ResourceSlice, usable []*resourceapi.Device) (list []device) {
	byCounters := map[string][]string{}
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			for _, consumed := range d.ConsumesCounters {
				byCounters[consumed.CounterSet] = append(byCounters[consumed.CounterSet], c.holders[structured.MakeDeviceID(driver, pool, d.Name)]...)
			}
		}
	}
	for _, d := range usable {
		own := c.holders[structured.MakeDeviceID(driver, pool, d.Name)]
		holders := slices.Clone(own)
		for _, consumed := range d.ConsumesCounters {
			holders = append(holders, byCounters[consumed.CounterSet]...)
		}
		slices.Sort(holders)
		list = append(list, device{Device: d, driver: driver, pool: pool, own: own, holders: slices.Compact(holders)})
	}
	return list
}

func value[T any](pointer *T) (zero T) {
	if pointer == nil {
		return zero
	}
	return *pointer
}

// matching is how the devices of a node meet a request.
type matching struct {
	// ofClass is the number of devices that are of the class, and fails how many of them each selector of the request excludes.
	ofClass int
	fails   []int
	// matched are the devices that meet the class and every selector.
	matched []device
}

// match evaluates the selectors of a request. The allocator stops at the first selector that a device does not meet; this evaluates all
// of them, and counts one that cannot be evaluated as not met.
func (c *Checker) match(ctx context.Context, w *wanted, devices []device) matching {
	made := matching{fails: make([]int, len(w.selectors))}
	for _, d := range devices {
		if !c.meets(ctx, c.classes[w.class].Spec.Selectors, d) {
			continue
		}
		made.ofClass++
		met := true
		for i := range w.selectors {
			if !c.meets(ctx, w.selectors[i:i+1], d) {
				made.fails[i]++
				met = false
			}
		}
		if met {
			made.matched = append(made.matched, d)
		}
	}
	return made
}

func (c *Checker) meets(ctx context.Context, selectors []resourceapi.DeviceSelector, d device) bool {
	for _, selector := range selectors {
		if selector.CEL == nil {
			return false
		}
		compiled := c.cel.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false
		}
		met, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver: d.driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
		})
		if err != nil || !met {
			return false
		}
	}
	return true
}

// untolerated returns the first taint of a device that keeps it from a request; nil when there is none.
func untolerated(d device, tolerations []resourceapi.DeviceToleration) *resourceapi.DeviceTaint {
	for i := range d.Taints {
		taint := &d.Taints[i]
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, *taint) }) {
			return taint
		}
	}
	return nil
}
