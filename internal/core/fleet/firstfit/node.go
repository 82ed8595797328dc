package firstfit

import (
	"fmt"
	"maps"
	"slices"
)

// device is a Device with its place in the node.
type device struct {
	*Device
	id       ID
	consumes []consumption
	pool     int32
	// elsewhere devices are for other nodes.
	elsewhere bool
}

// consumption is what a device takes of the counter with a number.
type consumption struct {
	counter int32
	amount  int64
}

// pool has a range of the node's counters.
type pool struct {
	first   int32
	end     int32
	special string
}

// Node has the devices that a node can use, in the order in which the allocator tries them.
type Node struct {
	devices []device
	pools   []pool
	totals  []int64
	// Invalid says for each pool that contradicts itself why nothing is allocated from it, in order.
	Invalid []string
}

// NewNode returns a node for its pools in the order in which the allocator tries them. It keeps pointers to the devices, which must
// not change.
func NewNode(pools []Pool) *Node {
	n := &Node{}
	for i := range pools {
		p := &pools[i]
		if p.Incomplete {
			continue
		}
		if why := p.contradiction(); why != "" {
			n.Invalid = append(n.Invalid, fmt.Sprintf("pool %s of driver %s: %s", p.Name, p.Driver, why))
			continue
		}
		n.add(p)
	}
	return n
}

// add appends the devices and counters of a valid pool.
func (n *Node) add(p *Pool) {
	counters := map[[2]string]int32{}
	first := int32(len(n.totals))
	for _, set := range p.Sets {
		for _, name := range slices.Sorted(maps.Keys(set.Counters)) {
			counters[[2]string{set.Name, name}] = int32(len(n.totals))
			n.totals = append(n.totals, set.Counters[name])
		}
	}
	for i := range p.Slices {
		slice := &p.Slices[i]
		for k := range slice.Devices {
			d := &slice.Devices[k]
			made := device{Device: d, id: ID{p.Driver, p.Name, d.Name}, pool: int32(len(n.pools)), elsewhere: slice.Elsewhere}
			for _, c := range d.Consumes {
				made.consumes = append(made.consumes, consumption{counters[[2]string{c.Set, c.Counter}], c.Amount})
			}
			n.devices = append(n.devices, made)
		}
	}
	n.pools = append(n.pools, pool{first, int32(len(n.totals)), p.Special})
}

// contradiction returns why nothing can be allocated from a pool; empty when it is valid.
func (p *Pool) contradiction() string {
	names, sets := map[string]bool{}, map[string]map[string]int64{}
	for _, set := range p.Sets {
		if sets[set.Name] != nil {
			return fmt.Sprintf("two counter sets have the name %s", set.Name)
		}
		sets[set.Name] = set.Counters
		if set.Counters == nil {
			sets[set.Name] = map[string]int64{}
		}
	}
	for _, slice := range p.Slices {
		for i := range slice.Devices {
			d := &slice.Devices[i]
			if names[d.Name] && !slice.Elsewhere {
				return fmt.Sprintf("two devices have the name %s", d.Name)
			}
			names[d.Name] = names[d.Name] || !slice.Elsewhere
			for _, c := range d.Consumes {
				if _, there := sets[c.Set][c.Counter]; !there {
					return fmt.Sprintf("device %s takes the counter %s of counter set %s, which does not exist", d.Name, c.Counter, c.Set)
				}
			}
		}
	}
	return ""
}

// Len is the number of devices. It includes devices for other nodes that take counters of the same pools.
func (n *Node) Len() int { return len(n.devices) }

// ID returns the name of the device at a position.
func (n *Node) ID(at int) ID { return n.devices[at].id }

// GPU returns the UUID of a device's GPU, empty if it is not known, and whether the device is all of it.
func (n *Node) GPU(at int) (uuid string, whole bool) { return n.devices[at].GPU, n.devices[at].Whole }

// Held returns which devices are held, in the order of the node.
func (n *Node) Held(held func(ID) bool) []bool {
	list := make([]bool, len(n.devices))
	for i := range n.devices {
		list[i] = held(n.devices[i].id)
	}
	return list
}

// Rest says which GPUs are still whole.
type Rest struct {
	// Whole are the UUIDs of the GPUs that are devices, and of which nothing is held; Used are those of the GPUs of which something
	// is held. Both are sorted.
	Whole []string
	Used  []string
}

// Rest returns what is left of the node's GPUs when the picks are held, too. held has an entry for each device. A GPU whose UUID is
// unknown is left out.
func (n *Node) Rest(held []bool, picks []Pick) Rest {
	used := map[string]bool{}
	for i := range n.devices {
		if held[i] {
			used[n.devices[i].GPU] = true
		}
	}
	for _, pick := range picks {
		used[n.devices[pick.Device].GPU] = true
	}
	delete(used, "")
	rest := Rest{Used: slices.Sorted(maps.Keys(used))}
	for i := range n.devices {
		if d := &n.devices[i]; d.Whole && d.GPU != "" && !d.elsewhere && !used[d.GPU] {
			rest.Whole = append(rest.Whole, d.GPU)
		}
	}
	slices.Sort(rest.Whole)
	return rest
}
