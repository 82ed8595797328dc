package drafleet

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

// poolID names a pool.
type poolID struct {
	driver string
	name   string
}

func poolOf(s *resourceapi.ResourceSlice) poolID { return poolID{s.Spec.Driver, s.Spec.Pool.Name} }

// Slices are all ResourceSlices of a cluster, found by node and by pool.
type Slices struct {
	byNode map[string][]*resourceapi.ResourceSlice
	// shared are those that name no node.
	shared []*resourceapi.ResourceSlice
	byPool map[poolID][]*resourceapi.ResourceSlice
}

// NewSlices returns an index of slices. Those with devices in compatibility groups are left out, as the allocator leaves them out
// while the feature gate DRADeviceCompatibilityGroups is off.
func NewSlices(list []*resourceapi.ResourceSlice) *Slices {
	s := &Slices{byNode: map[string][]*resourceapi.ResourceSlice{}, byPool: map[poolID][]*resourceapi.ResourceSlice{}}
	for _, one := range list {
		if grouped(one) {
			continue
		}
		s.byPool[poolOf(one)] = append(s.byPool[poolOf(one)], one)
		if name := one.Spec.NodeName; name != nil && *name != "" {
			s.byNode[*name] = append(s.byNode[*name], one)
		} else {
			s.shared = append(s.shared, one)
		}
	}
	return s
}

func grouped(s *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
			return len(c.CompatibilityGroups) > 0
		})
	})
}

// part is a slice with its place in a node.
type part struct {
	*slice
	// current has the present taints.
	current *resourceapi.ResourceSlice
	// first is the position of the first device in the node.
	first int
	// elsewhere slices are for other nodes; here says which devices of the others are for the node, nil for all.
	elsewhere bool
	here      []bool
}

// pool is one that a node can use.
type pool struct {
	poolID
	parts      []part
	sets       []firstfit.CounterSet
	incomplete bool
	// binds: a device has binding conditions. Such pools come last.
	binds bool
}

// Node has the devices that a node can use.
type Node struct {
	*firstfit.Node
	converter *Converter
	parts     []part
}

// Node returns what a node can use. Its error is about a node selector that cannot be parsed.
func (c *Converter) Node(node *corev1.Node, all *Slices) (*Node, error) {
	byPool, err := c.relevant(node, all)
	if err != nil {
		return nil, fmt.Errorf("devices of node %s: %w", node.Name, err)
	}
	var pools []pool
	for id, parts := range byPool {
		made, current := c.pool(id, parts, all)
		if current {
			pools = append(pools, made)
		}
	}
	slices.SortFunc(pools, func(a, b pool) int {
		return cmp.Or(compareBool(a.binds, b.binds), cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name))
	})
	return c.assemble(pools), nil
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// relevant returns the slices that have devices or counters for a node, by pool, those of the newest generation.
func (c *Converter) relevant(node *corev1.Node, all *Slices) (map[poolID][]part, error) {
	pools := map[poolID][]part{}
	for _, one := range slices.Concat(all.byNode[node.Name], all.shared) {
		here, relevant, err := forNode(one, node)
		if err != nil {
			return nil, fmt.Errorf("ResourceSlice %s: %w", one.Name, err)
		}
		if !relevant {
			continue
		}
		id := poolOf(one)
		made := part{slice: c.convert(one), current: one, here: here}
		known := pools[id]
		if len(known) > 0 {
			switch cmp.Compare(one.Spec.Pool.Generation, known[0].current.Spec.Pool.Generation) {
			case -1:
				continue
			case 1:
				known = nil
			}
		}
		pools[id] = append(known, made)
	}
	return pools, nil
}

// forNode tells whether a slice is for a node, and which of its devices are when they say so themselves.
func forNode(s *resourceapi.ResourceSlice, node *corev1.Node) (here []bool, relevant bool, _ error) {
	spec := &s.Spec
	if spec.NodeName != nil && *spec.NodeName != "" || spec.AllNodes != nil && *spec.AllNodes || spec.NodeSelector != nil {
		relevant, err := matches(node, spec.NodeName, spec.AllNodes, spec.NodeSelector)
		return nil, relevant, err
	}
	if spec.PerDeviceNodeSelection == nil || !*spec.PerDeviceNodeSelection {
		return nil, false, nil
	}
	here = make([]bool, len(spec.Devices))
	for i := range spec.Devices {
		d := &spec.Devices[i]
		var err error
		if here[i], err = matches(node, d.NodeName, d.AllNodes, d.NodeSelector); err != nil {
			return nil, false, fmt.Errorf("device %s: %w", d.Name, err)
		}
		relevant = relevant || here[i]
	}
	return here, relevant, nil
}

// matches compares a node with what a slice or a device says of nodes.
func matches(node *corev1.Node, name *string, all *bool, selector *corev1.NodeSelector) (bool, error) {
	switch {
	case name != nil && *name != "":
		return node.Name == *name, nil
	case all != nil && *all:
		return true, nil
	case selector == nil:
		return false, nil
	}
	parsed, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return false, fmt.Errorf("parse node selector: %w", err)
	}
	return parsed.Match(node), nil
}

// pool completes the slices of a pool; false when a newer generation exists that has none for the node.
func (c *Converter) pool(id poolID, relevant []part, all *Slices) (made pool, current bool) {
	made = pool{poolID: id, parts: relevant}
	first := &relevant[0].current.Spec.Pool
	slices.SortFunc(made.parts, func(a, b part) int { return cmp.Compare(a.current.Name, b.current.Name) })
	if int64(len(relevant)) != first.ResourceSliceCount {
		var others []part
		for _, one := range all.byPool[id] {
			switch cmp.Compare(one.Spec.Pool.Generation, first.Generation) {
			case 1:
				return pool{}, false
			case 0:
				if !slices.ContainsFunc(relevant, func(p part) bool { return p.current.Name == one.Name }) {
					others = append(others, part{slice: c.convert(one), current: one, elsewhere: true})
				}
			}
		}
		made.parts = append(made.parts, others...)
		made.incomplete = int64(len(made.parts)) != first.ResourceSliceCount
	}
	for i := range made.parts {
		p := &made.parts[i]
		made.sets = append(made.sets, p.sets...)
		made.binds = made.binds || !p.elsewhere && !made.incomplete && len(p.sets) == 0 &&
			slices.ContainsFunc(p.current.Spec.Devices, func(d resourceapi.Device) bool { return d.BindingConditions != nil })
	}
	return made, true
}

// assemble makes the node of its pools in order.
func (c *Converter) assemble(pools []pool) *Node {
	n := &Node{converter: c}
	var list []firstfit.Pool
	for i := range pools {
		p := &pools[i]
		made := firstfit.Pool{Driver: p.driver, Name: p.name, Sets: p.sets, Incomplete: p.incomplete}
		for k := range p.parts {
			one := &p.parts[k]
			made.Special = cmp.Or(made.Special, one.fault)
			if len(one.devices) > 0 {
				made.Slices = append(made.Slices, firstfit.Slice{Devices: one.devices, Elsewhere: one.elsewhere})
			}
		}
		list = append(list, made)
	}
	n.Node = firstfit.NewNode(list)
	for i := range pools {
		for _, one := range pools[i].parts {
			n.place(one, pools[i].poolID)
		}
	}
	return n
}

// place adds a part behind the others, unless the node left its pool out.
func (n *Node) place(p part, of poolID) {
	if last := len(n.parts) - 1; last >= 0 {
		p.first = n.parts[last].first + len(n.parts[last].devices)
	}
	if len(p.devices) == 0 || p.first == n.Len() {
		return
	}
	if id := n.ID(p.first); id.Driver == of.driver && id.Pool == of.name {
		n.parts = append(n.parts, p)
	}
}
