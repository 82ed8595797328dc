package gang

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Refusal says why a gang has no plan.
type Refusal struct {
	// Min is how many members have to fit, Most how many of the lowest index fit in one domain of the required level, Domain that domain.
	Min    int
	Most   int
	Domain string
	// Level is the name of the required level; empty is none.
	Level string
	// Domains is how many domains the level has.
	Domains int
	// Wider is the name of the narrowest wider level on which the gang would fit, "the whole fleet" if it has no name; empty for none.
	Wider string
	// Apart is true where bound members are not in one domain of the level.
	Apart bool
	// Kinds is the number of kinds of members where there are too many to be divided into segments.
	Kinds int
	// Rough is true where the gang was planned class by class: there may be a plan, and how many members fit is not known.
	Rough bool
	// Request is what the first member that does not fit requests, Node the node of the domain that lacks least for it beside the members
	// that do fit, of those that other rules allow if there are any, and Lack what.
	Request fleet.Shape
	Node    string
	Lack    fleet.Reason
	// Devices is what Node lacks instead of Lack, in the words of the scheduler's plugin for devices; empty where it was not asked.
	Devices string
}

// wholeFleet is what Wider says of the fleet.
const wholeFleet = "the whole fleet"

// String returns the refusal as a sentence without its end.
func (f *Refusal) String() string {
	where := "together"
	if f.Level != "" {
		where = "in one " + f.Level
	}
	switch {
	case f.Kinds > 0:
		return fmt.Sprintf("the gang has %d kinds of members, which are too many to be divided into segments; want members that request the same", f.Kinds)
	case f.Apart:
		return fmt.Sprintf("members that have a node are in several domains of the level %s, which all have to share", f.Level)
	case f.Domains == 0 && f.Level != "":
		return fmt.Sprintf("no node has the topology level %s, which the gang requires", f.Level)
	case f.Domains == 0:
		return "there are no nodes"
	case f.Rough:
		return fmt.Sprintf("%d members of many kinds have to fit %s, and they do not", f.Min, where)
	}
	text := fmt.Sprintf("%d members have to fit %s, and at most %d do", f.Min, where, f.Most)
	if f.Domain != "" {
		text += fmt.Sprintf(" (%s)", f.Domain)
	}
	if f.Node != "" {
		text += fmt.Sprintf("; for the next one the nearest node is %s: %s", f.Node, cmp.Or(f.Devices, f.Lack.String()))
	}
	return text
}

// boundApart returns the refusal of a gang whose bound members are in no common domain of the required level.
func (r *run) boundApart() *Refusal {
	if len(r.bound) == 0 {
		return nil
	}
	if slices.ContainsFunc(r.topology.domains(r.gang.Required, r.gang.Required), r.has) {
		return nil
	}
	return &Refusal{Min: r.gang.Min, Level: r.topology.Name(r.gang.Required), Apart: true}
}

// refuse says why fewer than the least number of members fit.
func (r *run) refuse(most int) *Refusal {
	domains := r.topology.domains(r.gang.Required, r.gang.Required)
	f := &Refusal{Min: r.gang.Min, Most: most, Level: r.topology.Name(r.gang.Required), Domains: len(domains)}
	for level := r.gang.Required - 1; level >= Anywhere && f.Wider == ""; level-- {
		for _, d := range r.topology.domains(level, level) {
			if r.has(d) && r.most(d) >= r.gang.Min {
				if f.Wider = r.topology.Name(level); f.Wider == "" {
					f.Wider = wholeFleet
				}
				break
			}
		}
	}
	for _, d := range domains {
		if r.has(d) && r.most(d) == most {
			f.Domain = r.topology.Domain(r.gang.Required, d.nodes[0])
			r.lack(f, d, most)
			break
		}
	}
	return f
}

// lack says what the first member that does not fit lacks in a domain, beside the others.
func (r *run) lack(f *Refusal, d domain, most int) {
	p, ok := r.solve(d, most)
	if !ok || most >= len(r.gang.Members) {
		return
	}
	mark := r.fleet.Checkpoint()
	defer r.fleet.Rollback(mark)
	for _, g := range p.groups {
		for k, i := range g.nodes {
			w := walk{Planner: r.Planner, node: i, classes: r.gang.Classes, space: r.space}
			for c, n := range g.rows[k] {
				for range n {
					w.member(&r.gang.Classes[c])
				}
			}
		}
	}
	r.nearest(f, d, &r.gang.Classes[r.gang.Members[most].Class])
}

// nearest says which node of a domain lacks least for a member of a class, and what.
func (r *run) nearest(f *Refusal, d domain, class *Class) {
	nodes := slices.DeleteFunc(slices.Clone(d.nodes), func(i int) bool { return class.Capacity != nil && class.Capacity[i] == 0 })
	if len(nodes) == 0 {
		nodes = d.nodes // Other rules keep the member from all of them.
	}
	for _, request := range class.Requests {
		f.Request = request
		for _, i := range nodes {
			n := r.fleet.Node(i)
			if lack := fleet.Fit(n, request); lack.Lack != fleet.None && (f.Node == "" || nearer(lack, f.Lack) || lack == f.Lack && n.Name < f.Node) {
				f.Node, f.Lack = n.Name, lack
			}
		}
		if f.Node != "" {
			return
		}
	}
}

// nearer tells whether a node lacks less than another one.
func nearer(a, b fleet.Reason) bool {
	if (a.Lack == fleet.Resource) != (b.Lack == fleet.Resource) {
		return b.Lack == fleet.Resource
	}
	return a.Have > b.Have
}
