package drafleet

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

// The attributes of a driver that say what a device is a part of. Berth's driver and NVIDIA's have them.
const (
	attributeType   = "type"
	attributeUUID   = "uuid"
	attributeParent = "parentUUID"
	typeGPU         = "gpu"
)

// device converts one of a driver. It returns what is not supported of the counters that the device takes; empty for nothing.
func device(driver string, d *resourceapi.Device) (made firstfit.Device, fault string) {
	made = firstfit.Device{Name: d.Name, Attributes: attributes(driver, d), Counted: len(d.ConsumesCounters) > 0, Special: special(d)}
	for _, consumed := range d.ConsumesCounters {
		for name, counter := range consumed.Counters {
			amount, ok := whole(counter.Value)
			if !ok {
				fault = fmt.Sprintf("is of a pool whose device %s takes %s of counter %s", d.Name, counter.Value.String(), name)
			}
			made.Consumes = append(made.Consumes, firstfit.Amount{Set: consumed.CounterSet, Counter: name, Amount: amount})
		}
	}
	slices.SortFunc(made.Consumes, func(a, b firstfit.Amount) int {
		if c := strings.Compare(a.Set, b.Set); c != 0 {
			return c
		}
		return strings.Compare(a.Counter, b.Counter)
	})
	made.Whole = made.Attributes[driver+"/"+attributeType].Text == typeGPU
	made.GPU = made.Attributes[driver+"/"+attributeParent].Text
	if made.Whole {
		made.GPU = made.Attributes[driver+"/"+attributeUUID].Text
	}
	return made, fault
}

// special returns what of a device the prediction does not cover.
func special(d *resourceapi.Device) string {
	switch {
	case len(d.BindingConditions) > 0 || len(d.BindingFailureConditions) > 0:
		return "has binding conditions"
	case d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations:
		return "can be allocated several times"
	}
	for _, capacity := range d.Capacity {
		if capacity.RequestPolicy != nil || capacity.Value.Sign() < 0 {
			return "has a capacity that depends on the request"
		}
	}
	return ""
}

// attributes have their domain. A name with the driver as its domain comes before the same one without.
func attributes(driver string, d *resourceapi.Device) map[string]firstfit.Value {
	made := make(map[string]firstfit.Value, len(d.Attributes))
	for name, attribute := range d.Attributes {
		full := string(name)
		if !strings.Contains(full, "/") {
			full = driver + "/" + full
			if _, there := d.Attributes[resourceapi.QualifiedName(full)]; there {
				continue
			}
		}
		made[full] = value(&attribute)
	}
	return made
}

func value(a *resourceapi.DeviceAttribute) firstfit.Value {
	switch {
	case a.StringValue != nil:
		return firstfit.Value{Kind: firstfit.String, Text: *a.StringValue}
	case a.IntValue != nil:
		return firstfit.Value{Kind: firstfit.Int, Number: *a.IntValue}
	case a.BoolValue != nil && *a.BoolValue:
		return firstfit.Value{Kind: firstfit.Bool, Number: 1}
	case a.BoolValue != nil:
		return firstfit.Value{Kind: firstfit.Bool}
	case a.VersionValue != nil:
		return firstfit.Value{Kind: firstfit.Version, Text: *a.VersionValue}
	}
	return firstfit.Value{}
}

// counterSet converts a set. It returns what is not supported of it; empty for nothing.
func counterSet(set *resourceapi.CounterSet) (made firstfit.CounterSet, fault string) {
	made = firstfit.CounterSet{Name: set.Name, Counters: make(map[string]int64, len(set.Counters))}
	for name, counter := range set.Counters {
		total, ok := whole(counter.Value)
		if !ok {
			fault = fmt.Sprintf("is of a pool whose counter %s of counter set %s is %s", name, set.Name, counter.Value.String())
		}
		made.Counters[name] = total
	}
	return made, fault
}

// whole returns a quantity that is a whole number from 0 to firstfit.MaxCounter.
func whole(q resource.Quantity) (int64, bool) {
	n, ok := q.AsInt64()
	if !ok || n < 0 || n > firstfit.MaxCounter {
		return 0, false
	}
	return n, true
}
