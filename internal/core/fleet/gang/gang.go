package gang

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// MaxMembers is how many members a gang can have.
const MaxMembers = 16384

// Class is a kind of members: all of them request the same, and other rules let them run on the same nodes.
type Class struct {
	// Requests are what a member requests; the first has its CPU and memory.
	Requests []fleet.Shape
	// Capacity is how many members other rules than those of package fleet let run on each node, by index; nil is any number. It does not
	// count members that are bound.
	Capacity []int32
}

// Other is something that package fleet does not count and that members of several classes take from the same node, such as the number of
// its pods. Class.Capacity is for the members of one class alone.
type Other struct {
	// Wants is how much a member of each class takes. Free is how much each node has, by index, without what bound members take.
	Wants []int64
	Free  []int64
}

// Member is a member of a gang.
type Member struct {
	// Class is its position in Gang.Classes.
	Class int
	// Node is the node to which the member is bound, whose share the fleet does not count as free; Unbound for the others.
	Node int
}

// Unbound is the Node of a member that is bound to none.
const Unbound = -1

// Segment is how a gang is divided: each Size members of consecutive index are in one domain of the Level. Size 0 is no division.
type Segment struct {
	Size  int
	Level int
}

// Gang is what to plan.
type Gang struct {
	Classes []Class
	Others  []Other
	// Members are in the order of their index.
	Members []Member
	// Min is how many members, of the lowest index, are placed or none.
	Min int
	// Required is the level of which one domain has all members, Preferred the narrowest level that is tried. Both are Anywhere or a
	// level of the topology.
	Required  int
	Preferred int
	Segment   Segment
}

// validate returns an error for a gang that cannot be.
func (g *Gang) validate(t *Topology, nodes int) error {
	level := func(l int) bool { return l >= Anywhere && l <= t.node() }
	switch {
	case len(g.Members) == 0 || len(g.Members) > MaxMembers:
		return fmt.Errorf("a gang of %d members; want 1 to %d", len(g.Members), MaxMembers)
	case g.Min < 1 || g.Min > len(g.Members):
		return fmt.Errorf("at least %d of %d members; want 1 to all of them", g.Min, len(g.Members))
	case !level(g.Required) || !level(g.Preferred) || g.Preferred < g.Required:
		return fmt.Errorf("the preferred level %d and the required level %d; want %d to %d, the preferred one as narrow or narrower", g.Preferred, g.Required, Anywhere, t.node())
	}
	if err := g.Segment.validate(t); err != nil {
		return err
	}
	if err := g.validateClasses(nodes); err != nil {
		return err
	}
	for i, m := range g.Members {
		if err := m.validate(len(g.Classes), nodes); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
	}
	return nil
}

// validateClasses returns an error for classes that cannot be, or for what they take together.
func (g *Gang) validateClasses(nodes int) error {
	for i := range g.Classes {
		if err := g.Classes[i].validate(nodes); err != nil {
			return fmt.Errorf("class %d: %w", i, err)
		}
	}
	for i := range g.Others {
		if err := g.Others[i].validate(len(g.Classes), nodes); err != nil {
			return fmt.Errorf("other %d: %w", i, err)
		}
	}
	return nil
}

// validate returns an error for a member that cannot be.
func (m Member) validate(classes, nodes int) error {
	if m.Class < 0 || m.Class >= classes || m.Node < Unbound || m.Node >= nodes {
		return fmt.Errorf("it is of class %d and bound to node %d; want a class and node that exist", m.Class, m.Node)
	}
	return nil
}

// validate returns an error for segments that cannot be.
func (s Segment) validate(t *Topology) error {
	if s.Size < 0 || s.Size > 0 && (s.Level < 0 || s.Level > t.node()) {
		return fmt.Errorf("segments of %d members on the level %d; want at least 1 and a level of the topology", s.Size, s.Level)
	}
	return nil
}

// validate returns an error for a class that cannot be.
func (c *Class) validate(nodes int) error {
	if len(c.Requests) == 0 || c.Capacity != nil && len(c.Capacity) != nodes {
		return fmt.Errorf("%d requests and a capacity for %d nodes; want at least one request, and %d nodes or none", len(c.Requests), len(c.Capacity), nodes)
	}
	for _, s := range c.Requests {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// validate returns an error for what cannot be.
func (o *Other) validate(classes, nodes int) error {
	if len(o.Wants) != classes || len(o.Free) != nodes {
		return fmt.Errorf("wanted by %d classes, and free on %d nodes; want %d classes and %d nodes", len(o.Wants), len(o.Free), classes, nodes)
	}
	negative := func(amount int64) bool { return amount < 0 }
	if slices.ContainsFunc(o.Wants, negative) || slices.ContainsFunc(o.Free, negative) {
		return fmt.Errorf("the amounts %d, and at least %d free; want none below 0", o.Wants, slices.Min(o.Free))
	}
	return nil
}

// fits tells whether a node has enough for a number of members of each class.
func (o *Other) fits(row []int32, node int) bool {
	left := o.Free[node]
	for c, n := range row {
		if want := o.Wants[c]; n > 0 && want > 0 {
			if int64(n) > left/want {
				return false
			}
			left -= int64(n) * want
		}
	}
	return true
}

// Plan is where the members of a gang go.
type Plan struct {
	// Nodes is the node of each member, that to which it is bound if it is; Unbound for those for which there is no capacity.
	Nodes []int
	// Placed is how many members have a node.
	Placed int
	// Level is the narrowest level of which one domain has all of them, of those that were tried, and Domain its name.
	Level  int
	Domain string
	// Cost is what the plan costs, without the members that are bound.
	Cost Cost
	// Exact is false where the gang was planned class by class, or members of a class were divided without that all ways were compared.
	Exact bool
}

// Cost is what is wrong with a plan, the most important part first. The costs of parts of a plan can be added up.
type Cost struct {
	ended    ended
	Degraded int64
	Crowded  int64
	Links    int64
	Nodes    int64
	Slack    int64
	Loss     int64
	Broken   int64
}

// ended is the part of a cost that is of holders that end: their violations, pods, and importance.
type ended struct {
	violations int64
	pods       int64
	importance int64
}

// plus returns the sum of two costs.
func (c Cost) plus(d Cost) Cost {
	return Cost{
		ended{c.ended.violations + d.ended.violations, c.ended.pods + d.ended.pods, c.ended.importance + d.ended.importance},
		c.Degraded + d.Degraded, c.Crowded + d.Crowded, c.Links + d.Links, c.Nodes + d.Nodes, c.Slack + d.Slack, c.Loss + d.Loss, c.Broken + d.Broken,
	}
}

// less tells whether a cost is lower than another one.
func (c Cost) less(d Cost) bool {
	switch {
	case c.ended != d.ended:
		return c.ended.less(d.ended)
	case c.Degraded != d.Degraded:
		return c.Degraded < d.Degraded
	case c.Crowded != d.Crowded:
		return c.Crowded < d.Crowded
	case c.Links != d.Links:
		return c.Links < d.Links
	case c.Nodes != d.Nodes:
		return c.Nodes < d.Nodes
	case c.Slack != d.Slack:
		return c.Slack < d.Slack
	case c.Loss != d.Loss:
		return c.Loss < d.Loss
	}
	return c.Broken < d.Broken
}

// less tells whether less ends.
func (e ended) less(f ended) bool {
	switch {
	case e.violations != f.violations:
		return e.violations < f.violations
	case e.pods != f.pods:
		return e.pods < f.pods
	}
	return e.importance < f.importance
}

// minus returns the difference of two costs.
func (c Cost) minus(d Cost) Cost {
	return Cost{
		ended{c.ended.violations - d.ended.violations, c.ended.pods - d.ended.pods, c.ended.importance - d.ended.importance},
		c.Degraded - d.Degraded, c.Crowded - d.Crowded, c.Links - d.Links, c.Nodes - d.Nodes, c.Slack - d.Slack, c.Loss - d.Loss, c.Broken - d.Broken,
	}
}
