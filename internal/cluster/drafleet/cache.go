package drafleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

// maxExpressions is how many expressions are remembered for one slice.
const maxExpressions = 256

// Converter converts objects, and remembers the results.
type Converter struct {
	compiled *cel.Cache
	mu       sync.Mutex
	slices   map[string]*slice
}

// New returns a converter that keeps so many compiled expressions.
func New(expressions int) *Converter {
	return &Converter{compiled: cel.NewCache(expressions, cel.Features{EnableConsumableCapacity: true}), slices: map[string]*slice{}}
}

// Keep forgets what is known about all ResourceSlices but these: each new one of a node has another name.
func (c *Converter) Keep(list []*resourceapi.ResourceSlice) {
	names := make(map[string]bool, len(list))
	for _, kept := range list {
		names[kept.Name] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.slices, func(name string, _ *slice) bool { return !names[name] })
}

// slice is a ResourceSlice of one resourceVersion. The taints are not a part of it: DeviceTaintRules change them.
type slice struct {
	uid     types.UID
	version string
	source  *resourceapi.ResourceSlice
	devices []firstfit.Device
	sets    []firstfit.CounterSet
	// fault is why no allocation from the slice's pool can be predicted; empty when it can.
	fault string

	mu sync.Mutex
	// verdicts has one for each device, by expression.
	verdicts map[string][]verdict
}

// verdict is that of one expression for one device.
type verdict uint8

const (
	unknown verdict = iota
	selects
	rejects
	fails
)

// convert returns what is known about a slice. Slices without a resourceVersion are not remembered.
func (c *Converter) convert(source *resourceapi.ResourceSlice) *slice {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.slices[source.Name]
	if known != nil && known.uid == source.UID && known.version == source.ResourceVersion {
		return known
	}
	made := &slice{uid: source.UID, version: source.ResourceVersion, source: source, verdicts: map[string][]verdict{}}
	for i := range source.Spec.SharedCounters {
		set, fault := counterSet(&source.Spec.SharedCounters[i])
		made.sets, made.fault = append(made.sets, set), cmp.Or(made.fault, fault)
	}
	if len(made.sets) == 0 { // The allocator does not look at the devices beside counter sets.
		for i := range source.Spec.Devices {
			one, fault := device(source.Spec.Driver, &source.Spec.Devices[i])
			made.devices, made.fault = append(made.devices, one), cmp.Or(made.fault, fault)
		}
	}
	if source.ResourceVersion != "" {
		c.slices[source.Name] = made
	}
	return made
}

// judge returns for each device of a slice the verdict of selectors: that of the first one that does not select the device. The error
// is that of a context that ended.
func (c *Converter) judge(ctx context.Context, s *slice, selectors []resourceapi.DeviceSelector) ([]verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Repeat([]verdict{selects}, len(s.devices))
	for i := range selectors {
		expression := selectors[i].CEL.Expression
		known := s.known(expression)
		for at := range list {
			if list[at] != selects {
				continue
			}
			if known[at] == unknown {
				made := c.evaluate(ctx, s, at, expression)
				if ctx.Err() != nil {
					return nil, fmt.Errorf("evaluate %s: %w", expression, context.Cause(ctx))
				}
				known[at] = made
			}
			list[at] = known[at]
		}
	}
	return list, nil
}

// known returns the verdicts of an expression, unknown ones included. The caller has locked the slice.
func (s *slice) known(expression string) []verdict {
	known := s.verdicts[expression]
	if known == nil {
		if len(s.verdicts) == maxExpressions {
			clear(s.verdicts)
		}
		known = make([]verdict, len(s.devices))
		s.verdicts[expression] = known
	}
	return known
}

// evaluate evaluates an expression for a device.
func (c *Converter) evaluate(ctx context.Context, s *slice, at int, expression string) verdict {
	compiled := c.compiled.GetOrCompile(expression)
	if compiled.Error != nil {
		return fails
	}
	d := &s.source.Spec.Devices[at]
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver: s.source.Spec.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	switch {
	case err != nil:
		return fails
	case matches:
		return selects
	}
	return rejects
}
