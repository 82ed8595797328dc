package why

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// gangLimit bounds how many states of nodes are looked at in the search for changes of a gang, maxAsks how often the planner is asked for
// gangs of several classes or of segments, and maxSets how many sets of taints, selectors and other gangs are tried.
const (
	gangLimit = 400_000
	maxAsks   = 200
	maxSets   = 24
)

// gangSearch finds changes with which a gang fits.
type gangSearch struct {
	*search
	g    *gangWorld
	best map[string]Change
	// asks is how often the planner may be asked yet by reduce.
	asks int
	// members are the pods that are members of gangs: they end with their gang or not at all.
	members map[string]string
}

// propose sets the changes with which the gang fits.
func (g *gangWorld) propose(answer *Answer, r *asked) {
	s := &gangSearch{search: &search{left: gangLimit}, g: g, best: map[string]Change{}, asks: maxAsks, members: map[string]string{}}
	for i := range g.in.Classes[0].Holders {
		if h := &g.in.Classes[0].Holders[i]; h.Gang != "" {
			s.members[h.Name] = h.Gang
		}
	}
	s.ofGang(r)
	s.fewerGPUs()
	s.otherResource()
	for _, acts := range s.openings() {
		s.onNodes(acts)
	}
	s.otherGangs()
	s.additions()
	answer.Changes = s.result()
	answer.Limited, answer.searched = s.limited, true
}

// keep keeps a change, if no smaller one has acts of the same kinds.
func (s *gangSearch) keep(acts []Act) {
	c := Change{Acts: acts}
	for i := range acts {
		c.Weight += acts[i].weight()
	}
	var key strings.Builder
	for _, kind := range c.kinds() {
		key.WriteString(string(kind) + " ")
	}
	if old, ok := s.best[key.String()]; !ok || compareChanges(&c, &old) < 0 {
		s.best[key.String()] = c
	}
}

// result returns the changes that the planner confirms, the smallest first, without those that contain all kinds of another one.
func (s *gangSearch) result() []Change {
	var list, result []Change
	for _, c := range s.best {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Change) int { return compareChanges(&a, &b) })
	for i := range list {
		c := &list[i]
		if len(result) == maxChanges || slices.ContainsFunc(result, func(other Change) bool { return includes(c.kinds(), other.kinds()) }) {
			continue
		}
		next := s.g.with(c.Acts)
		if r := next.ask(); r.refusal == nil {
			next.word(c, &r)
			result = append(result, *c)
		}
	}
	return result
}

// ofGang proposes what the gang itself can require less of: a wider level, the nearest first, and a smaller least number of members.
func (s *gangSearch) ofGang(r *asked) {
	in := s.g.in
	for level := s.g.required - 1; level >= -1; level-- {
		act := Act{Kind: OtherLevel, GPU: level, Key: s.g.levelName(level), Text: s.g.levelName(s.g.required)}
		if s.g.with([]Act{act}).fits() {
			s.keep([]Act{act})
			break
		}
	}
	most := r.refusal.Most
	if size := in.Segment.Size; size > 0 {
		most -= most % size
	}
	if most > 0 && in.Placed < in.least() {
		s.keep([]Act{{Kind: FewerMembers, Count: int64(most + in.Done), Was: int64(in.Min)}})
	}
}

// fewerGPUs proposes the most GPUs for each member with which all fit.
func (s *gangSearch) fewerGPUs() {
	most, resource := int64(0), ""
	for _, w := range s.g.classes {
		for _, d := range w.demands() {
			if resource != "" && resource != d.resource {
				return // Of which one a member should request fewer is not known.
			}
			most, resource = max(most, d.want), d.resource
		}
	}
	for count := most - 1; count > 0; count-- {
		acts := []Act{{Kind: RequestGPUs, Count: count, Was: most, Key: resource}}
		if s.g.with(acts).fits() {
			s.keep(acts)
			return
		}
	}
}

// otherResource proposes the nearest name of a resource that nodes have, where no node has the one that is requested.
func (s *gangSearch) otherResource() {
	names := s.g.classes[0].resources()
	for _, w := range s.g.classes {
		for _, d := range w.demands() {
			if slices.Contains(names, d.resource) {
				return
			}
			for _, name := range nearResources(d.resource, names) {
				if acts := []Act{{Kind: RequestResource, Key: name}}; s.g.with(acts).fits() {
					s.keep(acts)
					return
				}
			}
		}
	}
}

// openings are sets of changes of the pods that let them use more nodes: for the nodes with the same taints, labels and model, and for all
// of them. The first is none.
func (s *gangSearch) openings() [][]Act {
	sets := [][]Act{nil}
	var all []Act
	for i := range s.g.nodes() {
		var set []Act
		for _, w := range s.g.classes {
			acts, ok := w.unblock(&w.nodes[i])
			if !ok {
				continue
			}
			for _, a := range append(acts, w.model(&w.nodes[i])...) {
				if opens(a.Kind) && !slices.Contains(set, a) {
					set = append(set, a)
				}
			}
		}
		slices.SortFunc(set, compareActs)
		for _, a := range set {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		if !slices.ContainsFunc(sets, func(old []Act) bool { return slices.Equal(old, set) }) {
			sets = append(sets, set)
		}
	}
	slices.SortFunc(all, compareActs)
	if !slices.ContainsFunc(sets, func(old []Act) bool { return slices.Equal(old, all) }) {
		sets = append(sets, all)
	}
	slices.SortStableFunc(sets, func(a, b []Act) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), slices.CompareFunc(a, b, compareActs))
	})
	if len(sets) > maxSets {
		s.limited = true
		sets = sets[:maxSets]
	}
	return sets
}

func compareActs(a, b Act) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Node, b.Node))
}

// opens tells whether a change concerns the pods, and so all nodes.
func opens(kind ActKind) bool { return kind == Tolerate || kind == SelectLess || kind == AcceptModel }

// kindSet are kinds of changes that are allowed; nil allows all.
type kindSet []ActKind

func (k kindSet) has(kind ActKind) bool { return k == nil || slices.Contains(k, kind) }

// onNodes proposes changes on nodes, with other changes: of one kind alone, and of all kinds.
func (s *gangSearch) onNodes(acts []Act) {
	next := s.g.with(acts)
	sets := []kindSet{{}, nil}
	if len(acts) == 0 {
		sets = nil
		for _, kind := range []ActKind{EndPod, Uncordon, Validate, StartAgent, MakeReady, RepairNode, RepairGPU} {
			if s.occurs(kind) {
				sets = append(sets, kindSet{kind})
			}
		}
		if len(sets) > 1 {
			sets = append(sets, nil)
		}
	}
	for _, allowed := range sets {
		if local, ok := s.cheapest(next, allowed); ok {
			s.keep(slices.Concat(acts, local))
			if len(local) == 0 {
				return
			}
		}
	}
}

// occurs tells whether a kind of change can be made on some node.
func (s *gangSearch) occurs(kind ActKind) bool {
	for _, w := range s.g.classes {
		for i := range w.nodes {
			n := &w.nodes[i]
			switch {
			case kind == EndPod && len(w.holders[n.Name]) > 0:
				return true
			case kind == RepairGPU && slices.ContainsFunc(n.GPUs, func(g fleet.GPU) bool { return g.State > fleet.Degraded }):
				return true
			case slices.ContainsFunc(n.Blocks, func(b Block) bool { return fixes[b.Code] == kind }), kind == StartAgent && len(n.Silent) > 0:
				return true
			}
		}
	}
	return false
}

// cheapest returns the cheapest changes of some kinds on nodes with which the gang fits.
func (s *gangSearch) cheapest(g *gangWorld, allowed kindSet) ([]Act, bool) {
	if class, ok := g.alike(); ok {
		return s.divide(g, s.allWays(g, class, allowed))
	}
	return s.reduce(g, allowed)
}

// alike returns the class of all members that wait, and whether they are all of one and make no segments.
func (g *gangWorld) alike() (int, bool) {
	class := -1
	for _, m := range g.in.Members {
		if m.Node == "" && class >= 0 && m.Class != class || g.in.Segment.Size > 0 {
			return 0, false
		}
		if m.Node == "" {
			class = m.Class
		}
	}
	return class, class >= 0
}

// otherGangs proposes the end of one other gang, with that of further pods where it is not enough.
func (s *gangSearch) otherGangs() {
	class, ok := s.g.alike()
	if !ok {
		return
	}
	gangs := s.ends()
	if len(gangs) > maxSets {
		s.limited = true
		gangs = gangs[:maxSets]
	}
	if len(gangs) == 0 {
		return
	}
	base := s.allWays(s.g, class, kindSet{EndPod})
	for _, acts := range gangs {
		next, ways := s.g.with(acts), slices.Clone(base)
		for i := range next.nodes() {
			if slices.ContainsFunc(acts, func(a Act) bool { return a.Node == next.nodes()[i].Name }) {
				ways[i] = s.ways(next, class, i, kindSet{EndPod})
			}
		}
		if local, ok := s.divide(next, ways); ok {
			s.keep(slices.Concat(acts, local))
		}
	}
}

// ends are the ends of the other gangs, each as those of its members on nodes, the smallest gangs first.
func (s *gangSearch) ends() [][]Act {
	byGang := map[string][]Act{}
	for i := range s.g.in.Classes[0].Holders {
		h := &s.g.in.Classes[0].Holders[i]
		if h.Gang == "" || h.Gang == s.g.in.Key || slices.Contains(s.g.classes[0].gone, h.Name) {
			continue
		}
		byGang[h.Gang] = append(byGang[h.Gang], Act{Kind: EndPod, Pod: h.Name, Node: h.Node, Ending: h.Ending, Owner: h.Owner, Priority: h.Priority, Gang: h.Gang})
	}
	var list [][]Act
	for _, acts := range byGang {
		slices.SortFunc(acts, func(a, b Act) int { return cmp.Compare(a.Pod, b.Pod) })
		list = append(list, acts)
	}
	slices.SortFunc(list, func(a, b []Act) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[0].Priority, b[0].Priority), cmp.Compare(a[0].Gang, b[0].Gang))
	})
	return list
}
