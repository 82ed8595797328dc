package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// gangWorld is the state that questions about a gang are asked of: a world for each class of members. Changes make copies of what they
// change.
type gangWorld struct {
	in       *GangInput
	classes  []*world
	min      int
	required int
}

func newGangWorld(in *GangInput) *gangWorld {
	g := &gangWorld{in: in, required: in.Required, min: max(1, min(in.least(), len(in.Members)))}
	for c := range in.Classes {
		g.classes = append(g.classes, newWorld(&in.Classes[c]))
	}
	return g
}

// nodes are those of the world.
func (g *gangWorld) nodes() []Node { return g.classes[0].nodes }

// with returns the world after changes.
func (g *gangWorld) with(acts []Act) *gangWorld {
	next := *g
	next.classes = make([]*world, len(g.classes))
	for c, w := range g.classes {
		made := *w
		made.nodes, made.gone = slices.Clone(w.nodes), slices.Clone(w.gone)
		for i := range acts {
			made.applyForGang(&acts[i])
		}
		next.classes[c] = &made
	}
	for i := range acts {
		switch acts[i].Kind {
		case FewerMembers:
			next.min = int(acts[i].Count) - g.in.Done
		case OtherLevel:
			next.required = acts[i].GPU
		}
	}
	return &next
}

// applyForGang applies a change that may concern many nodes and only some of the classes.
func (w *world) applyForGang(a *Act) {
	switch a.Kind {
	case FewerMembers, OtherLevel:
	case EndPod:
		n := w.find(a.Node)
		if n == nil {
			w.end(a.Pod)
			return
		}
		for k := range w.holders[n.Name] {
			if h := &w.holders[n.Name][k]; h.Name == a.Pod {
				n.release(h)
			}
		}
		w.gone = append(w.gone, a.Pod)
	case RequestGPUs:
		if w.devices() > a.Count {
			w.apply(a)
		}
	case AddNode:
		for i := range a.Count {
			if n := w.find(a.Node); n != nil {
				made := w.emptied(n)
				made.Name = fmt.Sprintf("%s%s %d)", a.Node, newNode, i+1)
				w.nodes = append(w.nodes, made)
			}
		}
	default:
		w.apply(a)
	}
}

// newNode follows the name of the node that a new one is like.
const newNode = " (new"

// devices is how many devices of GPUs a pod requests in all.
func (w *world) devices() (sum int64) {
	for i := range w.requests {
		sum += int64(w.requests[i].GPUs)
	}
	return sum
}

// domain returns the domain of a node on a level, which is empty where it has none.
func (g *gangWorld) domain(level int, node string) string {
	switch {
	case level < 0:
		return "all"
	case level >= len(g.in.Levels):
		return node
	}
	like, _, _ := strings.Cut(node, newNode)
	if domains := g.in.Domains[like]; level < len(domains) {
		return domains[level]
	}
	return ""
}

// levelName is the name of a level, which is empty for the whole fleet.
func (g *gangWorld) levelName(level int) string {
	switch {
	case level < 0:
		return ""
	case level >= len(g.in.Levels):
		return "node"
	}
	return g.in.Levels[level]
}

// capacity returns how many members of a class can run on a node by the rules that package fleet does not look at.
func (g *gangWorld) capacity(class, node int) int32 {
	w := g.classes[class]
	n := &w.nodes[node]
	if len(n.Blocks) > 0 {
		return 0
	}
	most := int64(len(g.in.Members))
	if g.in.Alone[class] {
		most = 1
	}
	for _, name := range w.names {
		if want := w.others[name]; want > 0 {
			most = min(most, n.Others[name].Free/want)
		}
	}
	return int32(max(0, most))
}

// otherNames are the resources that members request beside CPU, memory and GPUs, ascending.
func (g *gangWorld) otherNames() []string {
	names := map[string]bool{}
	for _, w := range g.classes {
		for _, name := range w.names {
			if w.others[name] > 0 {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// other is what a node has of a resource, by its position. Only classes that request it know that.
func (g *gangWorld) other(name string, node int) Other {
	for _, w := range g.classes {
		if w.others[name] > 0 {
			return w.nodes[node].Others[name]
		}
	}
	return Other{}
}

// others returns what members take together from a node beside what package fleet counts.
func (g *gangWorld) others(f *fleet.Fleet) (list []gang.Other) {
	for _, name := range g.otherNames() {
		o := gang.Other{Wants: make([]int64, len(g.classes)), Free: make([]int64, f.Len())}
		for c, w := range g.classes {
			o.Wants[c] = w.others[name]
		}
		for i := range g.nodes() {
			if at, ok := f.Find(g.nodes()[i].Name); ok {
				o.Free[at] = max(0, g.other(name, i).Free)
			}
		}
		list = append(list, o)
	}
	return list
}

// asked is what the planner answers.
type asked struct {
	plan    gang.Plan
	refusal *gang.Refusal
	// nodes are the names of the nodes of the plan, by member; empty for those that have no place.
	nodes []string
}

// ask asks the planner for a plan.
func (g *gangWorld) ask() asked { return g.askOn(max(g.in.Preferred, g.required)) }

// fits asks the planner whether there is a plan.
func (g *gangWorld) fits() bool {
	r := g.askOn(g.required)
	return r.refusal == nil
}

func (g *gangWorld) askOn(preferred int) asked {
	list := make([]fleet.Node, len(g.nodes()))
	for i := range list {
		list[i] = g.nodes()[i].Node
	}
	f, err := fleet.New(list, 0)
	if err != nil {
		return asked{refusal: &gang.Refusal{Min: g.min}}
	}
	q := gang.Gang{Min: g.min, Required: g.required, Preferred: preferred, Segment: g.in.Segment, Others: g.others(f)}
	for c := range g.classes {
		class := gang.Class{Requests: g.classes[c].requests, Capacity: make([]int32, f.Len())}
		for i := range list {
			if at, ok := f.Find(list[i].Name); ok {
				class.Capacity[at] = g.capacity(c, i)
			}
		}
		q.Classes = append(q.Classes, class)
	}
	for _, m := range g.in.Members {
		made := gang.Member{Class: m.Class, Node: gang.Unbound}
		if at, ok := f.Find(m.Node); ok && m.Node != "" {
			made.Node = at
		}
		q.Members = append(q.Members, made)
	}
	topology := gang.NewTopology(f, g.in.Levels, g.domain)
	planner := gang.NewPlanner(fleet.NewDecider(f, fleet.Pack(fleet.NewMeasure(nil))))
	plan, refusal, err := planner.Plan(topology, &q)
	if err != nil {
		return asked{refusal: &gang.Refusal{Min: g.min}}
	}
	r := asked{plan: plan, refusal: refusal, nodes: make([]string, len(plan.Nodes))}
	for i, at := range plan.Nodes {
		if at != gang.Unbound {
			r.nodes[i] = f.Node(at).Name
		}
	}
	return r
}
