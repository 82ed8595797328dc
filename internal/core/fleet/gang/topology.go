package gang

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Anywhere is the level of a gang whose members may be in any domains: the whole fleet is one domain.
const Anywhere = -1

// none is the domain of a node that a level does not have.
const none = int32(-1)

// Topology says in which domain of each level a node is. A domain of one level need not lie within one of a wider level.
type Topology struct {
	levels []string
	names  [][]string // by level, the names of the domains in alphabetical order
	of     [][]int32  // by level and node, the position of the domain in names, or none
	// order is the place of a node among its neighbours: nodes of a domain follow one another, on each level.
	order []int32
	// kept are the domains that were asked for, by the two levels.
	kept map[[2]int][]domain
}

// NewTopology returns the topology of a fleet. The levels are the widest first, without that of the node, which follows them. domainOf
// returns the name of the domain of a node on a level, which is empty for a node that the level does not have.
func NewTopology(f *fleet.Fleet, levels []string, domainOf func(level int, node string) string) *Topology {
	t := &Topology{levels: slices.Clone(levels), kept: map[[2]int][]domain{}}
	for level := range len(levels) + 1 {
		numbers := map[string]int32{}
		domains := make([]string, f.Len())
		for i := range domains {
			domains[i] = f.Node(i).Name
			if level < len(levels) {
				domains[i] = domainOf(level, f.Node(i).Name)
			}
			if domains[i] != "" {
				numbers[domains[i]] = 0
			}
		}
		names := slices.Sorted(maps.Keys(numbers))
		for i, name := range names {
			numbers[name] = int32(i)
		}
		of := make([]int32, f.Len())
		for i, name := range domains {
			of[i] = none
			if name != "" {
				of[i] = numbers[name]
			}
		}
		t.names, t.of = append(t.names, names), append(t.of, of)
	}
	t.sort(f.Len())
	return t
}

// sort sets the order of the nodes.
func (t *Topology) sort(nodes int) {
	list := make([]int, nodes)
	for i := range list {
		list[i] = i
	}
	slices.SortFunc(list, func(a, b int) int {
		for _, of := range t.of {
			if c := cmp.Compare(of[a], of[b]); c != 0 {
				return c
			}
		}
		return 0
	})
	t.order = make([]int32, nodes)
	for place, node := range list {
		t.order[node] = int32(place)
	}
}

// Copy returns the same topology for another goroutine.
func (t *Topology) Copy() *Topology {
	c := *t
	c.kept = map[[2]int][]domain{}
	return &c
}

// node returns the level of the node itself, which is the narrowest.
func (t *Topology) node() int { return len(t.levels) }

// Name returns the name of a level, which is empty for Anywhere and "node" for that of the node.
func (t *Topology) Name(level int) string {
	switch {
	case level < 0:
		return ""
	case level >= len(t.levels):
		return "node"
	}
	return t.levels[level]
}

// Domain returns the name of the domain of a node on a level. It is empty for Anywhere and for a node that the level does not have.
func (t *Topology) Domain(level, node int) string {
	if level < 0 || t.of[level][node] == none {
		return ""
	}
	return t.names[level][t.of[level][node]]
}

// Domains returns the nodes of each domain of a level within those of a wider one, as domains does.
func (t *Topology) Domains(level, within int) [][]int {
	var list [][]int
	for _, d := range t.domains(level, within) {
		list = append(list, d.nodes)
	}
	return list
}

// domain is a set of nodes that are together on a level, and, where that is another one, on the required level of the gang.
type domain struct {
	nodes []int
}

// domains returns the domains of a level within those of a wider one, in the order of their names. Nodes that one of the two does not
// have are in none.
func (t *Topology) domains(level, within int) []domain {
	if list, known := t.kept[[2]int{level, within}]; known {
		return list
	}
	type key struct {
		wide   int32
		narrow int32
	}
	at := func(level, node int) int32 {
		if level < 0 {
			return 0
		}
		return t.of[level][node]
	}
	positions := map[key]int{}
	var keys []key
	var list []domain
	for i := range t.order {
		k := key{at(within, i), at(level, i)}
		if k.wide == none || k.narrow == none {
			continue
		}
		p, known := positions[k]
		if !known {
			p = len(list)
			positions[k] = p
			list, keys = append(list, domain{}), append(keys, k)
		}
		list[p].nodes = append(list[p].nodes, i)
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.narrow, b.narrow), cmp.Compare(a.wide, b.wide)) })
	sorted := make([]domain, 0, len(list))
	for _, k := range keys {
		sorted = append(sorted, list[positions[k]])
	}
	t.kept[[2]int{level, within}] = sorted
	return sorted
}
