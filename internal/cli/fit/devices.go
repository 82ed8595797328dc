package fit

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// device is one that a node can use.
type device struct {
	*resourceapi.Device
	driver string
	pool   string
	// own are the claims that hold it, and holders also those that hold counters of which it then cannot have enough; both are sorted.
	own     []string
	holders []string
}

// id names the device in its cluster.
func (d *device) id() string { return d.driver + "/" + d.pool + "/" + d.Name }

// unusable is a pool of which nothing is allocated.
type unusable struct {
	reason v1alpha1.FitReason
	// devices are those of the pool that exist.
	devices []device
}

// poolKey names a pool.
type poolKey struct {
	driver string
	pool   string
}

// devicesOn returns the devices of a node in the order of drivers, pools and slices, and the pools of which none is allocated.
func (c *Checker) devicesOn(node *corev1.Node) (devices []device, unusables []unusable, err error) {
	for _, k := range c.order {
		all := c.pools[k]
		usable, relevant, err := c.usable(node, all)
		if err != nil {
			return nil, nil, err
		}
		if !relevant {
			continue
		}
		list := c.withHolders(k, all, usable)
		if reason := defect(k, all); reason != nil {
			unusables = append(unusables, unusable{*reason, list})
			continue
		}
		devices = append(devices, list...)
	}
	return devices, unusables, nil
}

// poolsOf returns the slices of the newest generation of each pool, in their order.
func poolsOf(list []*resourceapi.ResourceSlice) map[poolKey][]*resourceapi.ResourceSlice {
	pools := map[poolKey][]*resourceapi.ResourceSlice{}
	for _, slice := range list {
		k := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		all := pools[k]
		switch {
		case len(all) == 0:
		case slice.Spec.Pool.Generation < all[0].Spec.Pool.Generation:
			continue
		case slice.Spec.Pool.Generation > all[0].Spec.Pool.Generation:
			all = nil
		}
		pools[k] = append(all, slice)
	}
	return pools
}

// defect returns why the allocator takes no device of a pool; nil when it does.
func defect(k poolKey, all []*resourceapi.ResourceSlice) *v1alpha1.FitReason {
	if spec := all[0].Spec.Pool; int64(len(all)) != spec.ResourceSliceCount {
		return &v1alpha1.FitReason{Code: v1alpha1.FitPoolIncomplete, Message: fmt.Sprintf(
			"Pool %s of driver %s is incomplete: %d of the %d ResourceSlices of generation %d exist, so its devices are not allocated.",
			k.pool, k.driver, len(all), spec.ResourceSliceCount, spec.Generation)}
	}
	if why := contradiction(all); why != "" {
		return &v1alpha1.FitReason{Code: v1alpha1.FitPoolInvalid, Message: fmt.Sprintf(
			"Pool %s of driver %s is invalid, so its devices are not allocated: %s.", k.pool, k.driver, why)}
	}
	return nil
}

// counter is one of a pool.
type counter struct {
	set  string
	name string
}

// contradiction returns what makes the slices of a pool invalid; empty when they are valid.
func contradiction(all []*resourceapi.ResourceSlice) string {
	devices, sets, counters := map[string]bool{}, map[string]bool{}, map[counter]bool{}
	for _, slice := range all {
		for _, set := range slice.Spec.SharedCounters {
			if sets[set.Name] {
				return fmt.Sprintf("two counter sets have the name %s", set.Name)
			}
			sets[set.Name] = true
			for name := range set.Counters {
				counters[counter{set.Name, name}] = true
			}
		}
	}
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			if devices[d.Name] {
				return fmt.Sprintf("two devices have the name %s", d.Name)
			}
			devices[d.Name] = true
			for _, consumed := range d.ConsumesCounters {
				for _, name := range slices.Sorted(maps.Keys(consumed.Counters)) {
					if !counters[counter{consumed.CounterSet, name}] {
						return fmt.Sprintf("device %s uses the counter %s of counter set %s, which does not exist", d.Name, name, consumed.CounterSet)
					}
				}
			}
		}
	}
	return ""
}

// usable returns the devices of slices that a node can use, and whether a slice is for the node.
func (c *Checker) usable(node *corev1.Node, list []*resourceapi.ResourceSlice) (devices []*resourceapi.Device, relevant bool, _ error) {
	matches := func(name *string, all *bool, selector *corev1.NodeSelector) (bool, error) {
		if name != nil && *name != "" {
			return *name == node.Name, nil // Most slices; there are as many as nodes.
		}
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

// withHolders adds to the devices of a pool the claims that hold them, or counters that they need.
func (c *Checker) withHolders(k poolKey, all []*resourceapi.ResourceSlice, usable []*resourceapi.Device) (list []device) {
	free, byCounter := map[counter]resource.Quantity{}, map[counter][]string{}
	for _, slice := range all {
		for _, set := range slice.Spec.SharedCounters {
			for name, total := range set.Counters {
				free[counter{set.Name, name}] = total.Value.DeepCopy()
			}
		}
	}
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			holders := c.holders[structured.MakeDeviceID(k.driver, k.pool, d.Name)]
			if len(holders) == 0 {
				continue
			}
			for of, amount := range consumption(d) {
				left := free[of]
				left.Sub(amount)
				free[of] = left
				if !amount.IsZero() {
					byCounter[of] = append(byCounter[of], holders...)
				}
			}
		}
	}
	for _, d := range usable {
		own := c.holders[structured.MakeDeviceID(k.driver, k.pool, d.Name)]
		holders := slices.Clone(own)
		for of, amount := range consumption(d) {
			if left := free[of]; left.Cmp(amount) < 0 {
				holders = append(holders, byCounter[of]...)
			}
		}
		slices.Sort(holders)
		list = append(list, device{Device: d, driver: k.driver, pool: k.pool, own: own, holders: slices.Compact(holders)})
	}
	return list
}

// consumption returns what a device takes of each counter.
func consumption(d *resourceapi.Device) map[counter]resource.Quantity {
	all := map[counter]resource.Quantity{}
	for _, consumed := range d.ConsumesCounters {
		for name, amount := range consumed.Counters {
			all[counter{consumed.CounterSet, name}] = amount.Value
		}
	}
	return all
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
