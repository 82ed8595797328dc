package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Validate returns an error for each rule of the API that the slices of a pool break, with the slice, the device and the limit. The API
// server refuses such a slice as a whole, and the scheduler a pool whose slices do not match, so none may be sent.
func Validate(slices []resourceapi.ResourceSlice) error {
	v := &validator{devices: map[string]string{}, sets: map[string]*resourceapi.CounterSet{}}
	for i := range slices {
		for k := range slices[i].Spec.SharedCounters {
			v.set(slices[i].Name, &slices[i].Spec.SharedCounters[k])
		}
	}
	for i := range slices {
		v.slice(&slices[i], len(slices))
	}
	return errors.Join(v.found...)
}

// validator has the errors found, and the names of the pool: of each device the slice that has it, and the counter sets.
type validator struct {
	found   []error
	devices map[string]string
	sets    map[string]*resourceapi.CounterSet
}

func (v *validator) add(format string, args ...any) {
	v.found = append(v.found, fmt.Errorf(format, args...))
}

// most adds an error when there are more than the limit.
func (v *validator) most(where string, n, limit int, what string) {
	if n > limit {
		v.add("%s: %d %s, at most %d are allowed", where, n, what, limit)
	}
}

func (v *validator) slice(slice *resourceapi.ResourceSlice, count int) {
	where, spec := "slice "+slice.Name, &slice.Spec
	if len(spec.Driver) > resourceapi.DriverNameMaxLength || len(validation.IsDNS1123Subdomain(spec.Driver)) > 0 {
		v.add("%s: the driver name %q must be a DNS subdomain of at most %d characters", where, spec.Driver, resourceapi.DriverNameMaxLength)
	}
	v.poolName(where, spec.Pool.Name)
	if spec.NodeName == nil || *spec.NodeName == "" {
		v.add("%s: no Node is named", where)
	}
	if spec.Pool.ResourceSliceCount != int64(count) {
		v.add("%s: it says that the pool has %d slices, and there are %d", where, spec.Pool.ResourceSliceCount, count)
	}
	if spec.Pool.Generation < 0 {
		v.add("%s: the generation %d is negative", where, spec.Pool.Generation)
	}
	if len(spec.SharedCounters) > 0 && len(spec.Devices) > 0 {
		v.add("%s: it has devices and counter sets; each kind needs slices of its own", where)
	}
	v.most(where, len(spec.SharedCounters), resourceapi.ResourceSliceMaxCounterSets, "counter sets")
	v.most(where, len(spec.Devices), maxDevices, "devices")
	for i := range spec.Devices {
		v.device(slice.Name, &spec.Devices[i])
	}
}

func (v *validator) poolName(where, name string) {
	if name == "" || len(name) > resourceapi.PoolNameMaxLength {
		v.add("%s: the pool name %q must have 1 to %d characters", where, name, resourceapi.PoolNameMaxLength)
		return
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(validation.IsDNS1123Subdomain(part)) > 0 {
			v.add("%s: the pool name %q must be DNS subdomains with slashes between them", where, name)
		}
	}
}

func (v *validator) set(slice string, set *resourceapi.CounterSet) {
	where := fmt.Sprintf("slice %s, counter set %s", slice, set.Name)
	v.label(where, set.Name)
	if v.sets[set.Name] != nil {
		v.add("%s: the pool has two sets of that name", where)
	}
	v.sets[set.Name] = set
	if len(set.Counters) == 0 {
		v.add("%s: it has no counters", where)
	}
	v.most(where, len(set.Counters), resourceapi.ResourceSliceMaxCountersPerCounterSet, "counters")
	for _, name := range slices.Sorted(maps.Keys(set.Counters)) {
		v.label(where+", counter "+name, name)
	}
}

// label adds an error unless the name is a DNS label.
func (v *validator) label(where, name string) {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		v.add("%s: the name %q is invalid: %s", where, name, strings.Join(faults, "; "))
	}
}

func (v *validator) device(slice string, device *resourceapi.Device) {
	where := fmt.Sprintf("slice %s, device %s", slice, device.Name)
	v.label(where, device.Name)
	if other, twice := v.devices[device.Name]; twice {
		v.add("%s: slice %s has a device of that name", where, other)
	}
	v.devices[device.Name] = slice
	v.most(where, len(device.Attributes)+len(device.Capacity), resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice, "attributes and capacities")
	v.most(where, len(device.Taints), resourceapi.DeviceTaintsMaxLength, "taints")
	for _, name := range slices.Sorted(maps.Keys(device.Attributes)) {
		v.qualified(where+", attribute "+string(name), string(name))
		v.attribute(where+", attribute "+string(name), device.Attributes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(device.Capacity)) {
		v.qualified(where+", capacity "+string(name), string(name))
	}
	for _, taint := range device.Taints {
		v.taint(where, taint)
	}
	v.consumption(where, device.ConsumesCounters)
}

// qualified adds an error unless the name is an identifier, or a domain, a slash and an identifier.
func (v *validator) qualified(where, name string) {
	domain, id, ok := strings.Cut(name, "/")
	if !ok {
		domain, id = "", name
	}
	if ok && (len(domain) > resourceapi.DeviceMaxDomainLength || len(validation.IsDNS1123Subdomain(domain)) > 0) {
		v.add("%s: the domain must be a DNS subdomain of at most %d characters", where, resourceapi.DeviceMaxDomainLength)
	}
	if len(id) > resourceapi.DeviceMaxIDLength || !isIdentifier(id) {
		v.add("%s: the name must be an identifier of at most %d characters", where, resourceapi.DeviceMaxIDLength)
	}
}

// isIdentifier reports whether a text is an identifier of C.
func isIdentifier(text string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	return text != "" && strings.Trim(text, letters+"0123456789") == "" && strings.ContainsRune(letters, rune(text[0]))
}

func (v *validator) attribute(where string, value resourceapi.DeviceAttribute) {
	lists := len(value.BoolValues) + len(value.IntValues) + len(value.StringValues) + len(value.VersionValues)
	set := 0
	for _, one := range []bool{value.BoolValue != nil, value.IntValue != nil, value.StringValue != nil, value.VersionValue != nil} {
		if one {
			set++
		}
	}
	if lists > 0 || set != 1 {
		v.add("%s: it must have one value", where)
	}
	for _, text := range []*string{value.StringValue, value.VersionValue} {
		if text != nil && len(*text) > resourceapi.DeviceAttributeMaxValueLength {
			v.add("%s: the value has %d bytes, at most %d are allowed", where, len(*text), resourceapi.DeviceAttributeMaxValueLength)
		}
	}
	if value.VersionValue != nil && !isVersion(*value.VersionValue) {
		v.add("%s: %q is no semantic version of three numbers", where, *value.VersionValue)
	}
}

// isVersion reports whether a text is what setVersion writes.
func isVersion(text string) bool {
	a := attributes{}
	setVersion(a, "v", text)
	return a["v"].VersionValue != nil && *a["v"].VersionValue == text
}

func (v *validator) taint(where string, taint resourceapi.DeviceTaint) {
	where += ", taint " + taint.Key
	if len(validation.IsQualifiedName(taint.Key)) > 0 || len(validation.IsValidLabelValue(taint.Value)) > 0 {
		v.add("%s: the key must be a label's name, and the value %q a label's value", where, taint.Value)
	}
	switch taint.Effect {
	case resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
	default:
		v.add("%s: the effect %q must be None, NoSchedule or NoExecute", where, taint.Effect)
	}
}

// consumption compares what a device takes with the counter sets of the pool.
func (v *validator) consumption(where string, consumes []resourceapi.DeviceCounterConsumption) {
	v.most(where, len(consumes), resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice, "counter sets that it takes from")
	for i := range consumes {
		where := where + ", counter set " + consumes[i].CounterSet
		set := v.sets[consumes[i].CounterSet]
		if set == nil {
			v.add("%s: the pool has no such set", where)
			continue
		}
		if len(consumes[i].Counters) == 0 {
			v.add("%s: it takes nothing of it", where)
		}
		v.most(where, len(consumes[i].Counters), resourceapi.ResourceSliceMaxCountersPerDeviceCounterConsumption, "counters")
		for _, name := range slices.Sorted(maps.Keys(consumes[i].Counters)) {
			taken, has := consumes[i].Counters[name].Value, set.Counters[name].Value
			if _, exists := set.Counters[name]; !exists {
				v.add("%s: the set has no counter %s", where, name)
			} else if taken.Cmp(has) > 0 {
				v.add("%s: it takes %s of the counter %s, which has %s", where, taken.String(), name, has.String())
			}
		}
	}
}
