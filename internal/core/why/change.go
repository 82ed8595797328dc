package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// maxChanges is how many proposals an answer has.
const maxChanges = 6

// Change is a proposal: with all of its acts the pod fits.
type Change struct {
	Acts []Act
	// Node is where the pod fits then.
	Node string
	// Weight is the sum over the acts.
	Weight int
	// Text is a sentence, Do are commands or instructions.
	Text string
	Do   []string
}

// kinds are the kinds of the acts, which tell proposals apart.
func (c *Change) kinds() []ActKind {
	var kinds []ActKind
	for i := range c.Acts {
		kinds = append(kinds, c.Acts[i].Kind)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// changes returns the proposals, the smallest one first: of each combination of kinds the smallest, without those that contain all kinds of
// another one.
func (w *world) changes(s *search) []Change {
	best := map[string]Change{}
	keep := func(c Change) {
		for i := range c.Acts {
			c.Weight += c.Acts[i].weight()
		}
		var key strings.Builder
		for _, kind := range c.kinds() {
			key.WriteString(string(kind) + " ")
		}
		if old, ok := best[key.String()]; !ok || compareChanges(&c, &old) < 0 {
			best[key.String()] = c
		}
	}
	for _, n := range w.candidates(s) {
		w.changesOn(s, n, keep)
	}
	w.additions(s, keep)
	if len(best) == 0 {
		w.newNode(keep)
	}
	var list []Change
	for _, c := range best {
		if w.verified(&c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return compareChanges(&a, &b) })
	var result []Change
	for i := range list {
		if contained := slices.ContainsFunc(result, func(c Change) bool { return includes(list[i].kinds(), c.kinds()) }); !contained && len(result) < maxChanges {
			result = append(result, list[i])
		}
	}
	return result
}

// maxClaimNodes bounds the nodes on which changes are tried for a pod with claims: each question about claims costs milliseconds.
const maxClaimNodes = 8

// candidates returns the nodes on which changes are tried; for a pod with claims the nearest ones only.
func (w *world) candidates(s *search) []*Node {
	var list []*Node
	if w.claims != nil && len(w.nodes) > maxClaimNodes {
		s.limited = true
		verdicts := w.judge(&Answer{})
		for i := range verdicts[:min(len(verdicts), maxClaimNodes)] {
			list = append(list, verdicts[i].node)
		}
		return list
	}
	for i := range w.nodes {
		list = append(list, &w.nodes[i])
	}
	return list
}

func includes(all, some []ActKind) bool {
	return !slices.ContainsFunc(some, func(k ActKind) bool { return !slices.Contains(all, k) })
}

// verified asks the predicates again, of the whole changed world.
func (w *world) verified(c *Change) bool {
	next := w.with(c.Acts)
	for i := range next.nodes {
		if n := &next.nodes[i]; n.Name == c.Node && next.fits(n) {
			return true
		}
	}
	return false
}

// compareChanges orders proposals: by weight, number of acts, by what is requested of most, priority of the pods that end, then names.
func compareChanges(a, b *Change) int {
	return cmp.Or(cmp.Compare(a.Weight, b.Weight), cmp.Compare(len(a.Acts), len(b.Acts)), -cmp.Compare(a.count(), b.count()), cmp.Compare(a.priority(), b.priority()),
		cmp.Compare(a.Node, b.Node), slices.CompareFunc(a.Acts, b.Acts, func(x, y Act) int {
			return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Key, y.Key), cmp.Compare(x.Pod, y.Pod))
		}))
}

// count is what the pod still requests with the change, of what it gives up.
func (c *Change) count() (sum int64) {
	for i := range c.Acts {
		if a := &c.Acts[i]; a.Was > 0 {
			sum += a.Count
		}
	}
	return sum
}

func (c *Change) priority() (most int64) {
	most = -1 << 40
	for i := range c.Acts {
		if c.Acts[i].Kind == EndPod {
			most = max(most, int64(c.Acts[i].Priority))
		}
	}
	return most
}

// changesOn proposes changes with which the pod fits on one node: what ends the blocks there, with each choice of what else changes.
func (w *world) changesOn(s *search, n *Node, keep func(Change)) {
	acts, ok := w.unblock(n)
	if !ok {
		return
	}
	acts = append(acts, w.model(n)...)
	for _, less := range w.less(n) {
		w.complete(s, n, acts, less, keep)
	}
	w.relaxations(s, n, acts, keep)
	w.otherLayouts(n, acts, keep)
	w.otherResources(n, acts, keep)
}

// unblock returns the acts that end all blocks of a node; false when one cannot be ended.
func (w *world) unblock(n *Node) ([]Act, bool) {
	var acts []Act
	for i := range n.Blocks {
		act, ok := blockAct(n, &n.Blocks[i])
		if !ok {
			return nil, false
		}
		if !slices.Contains(acts, act) {
			acts = append(acts, act)
		}
	}
	if len(n.Silent) > 0 && slices.ContainsFunc(n.Silent, func(i int) bool { return w.requestsOf(n.GPUs[i].Resource) }) {
		acts = append(acts, Act{Kind: StartAgent, Node: n.Name})
	}
	return acts, true
}

// model accepts the model of a node when it is not accepted yet.
func (w *world) model(n *Node) []Act {
	for _, s := range w.requests {
		if s.GPUs > 0 && !s.Models.Allows(n.Model) {
			return []Act{{Kind: AcceptModel, Key: n.Model}}
		}
	}
	return nil
}

// less returns the choices about what is requested less of: nothing, or the least possible of some of GPUs, CPU and memory that lack.
func (w *world) less(n *Node) [][]Act {
	cpu, memory := w.plain()
	var single []Act
	if d := w.demands(); len(d) == 1 && d[0].want > 1 && w.lacking(n, &d[0]).Code != "" {
		single = append(single, Act{Kind: RequestGPUs, Count: 1, Was: d[0].want, Key: d[0].resource})
	}
	if cpu > n.FreeCPU {
		single = append(single, Act{Kind: RequestCPU, Count: 1, Was: cpu})
	}
	if memory > n.FreeMemory {
		single = append(single, Act{Kind: RequestMemory, Count: 1, Was: memory})
	}
	choices := [][]Act{nil}
	for _, act := range single {
		for _, c := range slices.Clone(choices) {
			choices = append(choices, append(slices.Clone(c), act))
		}
	}
	return choices
}

// complete adds the smallest set of pods that end, with and without repaired GPUs. Then it raises what is requested as far as possible.
func (w *world) complete(s *search, n *Node, acts, less []Act, keep func(Change)) {
	fixed := slices.Concat(acts, less)
	next, node := w.on(n, fixed)
	for _, repairs := range []bool{false, true} {
		set, ok := s.smallest(next, node, next.items(node, repairs))
		if ok {
			all := slices.Clone(fixed)
			for i := range set {
				all = append(all, set[i].act)
			}
			w.raise(n, all, len(acts), len(fixed))
			keep(Change{Acts: all, Node: n.Name})
		}
		if ok && len(set) == 0 || !slices.ContainsFunc(n.GPUs, func(g fleet.GPU) bool { return g.State > fleet.Degraded }) {
			return
		}
	}
}

// raise sets what is requested by the acts from one position to another to the most with which the pod fits.
func (w *world) raise(n *Node, acts []Act, from, to int) {
	for i := from; i < to; i++ {
		a := &acts[i]
		if a.Was == 0 {
			continue // RelaxClaim has no number that could be raised.
		}
		_, node := w.on(n, acts)
		most := a.Was - 1
		switch a.Kind {
		case RequestCPU:
			most = min(most, node.FreeCPU)
		case RequestMemory:
			most = min(most, node.FreeMemory)
		}
		for a.Count = max(1, most); a.Count > 1; a.Count-- {
			if next, node := w.on(n, acts); next.fits(node) {
				break
			}
			if a.Kind != RequestGPUs {
				a.Count = 2 // It is the most that is free, or the least.
			}
		}
	}
}

// relaxations proposes other requests of the claims, with and without the end of pods.
func (w *world) relaxations(s *search, n *Node, acts []Act, keep func(Change)) {
	if w.claims == nil || len(w.claims.Lacks(n.Name, w.gone, w.relaxed)) == 0 {
		return
	}
	for i, r := range w.claims.Relaxations() {
		w.complete(s, n, acts, []Act{{Kind: RelaxClaim, Key: r.Key, Text: r.Text, Count: int64(i), GPU: i}}, keep)
	}
}

// otherLayouts proposes other MIG devices for an idle GPU.
func (w *world) otherLayouts(n *Node, acts []Act, keep func(Change)) {
	for _, l := range n.Layouts {
		if !w.requestsOf(l.Resource) || !n.idle(l.Physical) {
			continue
		}
		with := append(slices.Clone(acts), Act{Kind: Repartition, Node: n.Name, GPU: int(l.Physical), Key: l.Resource, Count: int64(l.Devices)})
		if next, node := w.on(n, with); next.fits(node) {
			keep(Change{Acts: with, Node: n.Name})
		}
	}
}

// idle tells whether nothing of a physical GPU is in use, and all of it can be allocated.
func (n *Node) idle(physical uint8) bool {
	return !slices.ContainsFunc(n.GPUs, func(g fleet.GPU) bool {
		return g.Physical == physical && (g.Free < sizeOf(&g) || g.State > fleet.Degraded)
	})
}

// otherResources proposes the nearest other name of a resource that no node has.
func (w *world) otherResources(n *Node, acts []Act, keep func(Change)) {
	demands := w.demands()
	if len(demands) != 1 || w.offers(demands[0].resource) {
		return
	}
	for _, name := range nearResources(demands[0].resource, w.resources()) {
		with := append(slices.Clone(acts), Act{Kind: RequestResource, Key: name})
		if next, node := w.on(n, with); next.fits(node) {
			keep(Change{Acts: with, Node: n.Name})
			return
		}
	}
}

// additions proposes one more node of a kind that there is.
func (w *world) additions(s *search, keep func(Change)) {
	seen := map[string]bool{}
	for i := range w.nodes {
		n := &w.nodes[i]
		made := w.emptied(n)
		if key := made.looks(); n.Kind != "" && !seen[key] {
			seen[key] = true
			w.changesOn(s, &made, func(c Change) {
				c.Acts = append([]Act{{Kind: AddNode, Node: n.Name, Key: n.Kind}}, c.Acts...)
				keep(c)
			})
		}
	}
}

// newNode proposes a node that has exactly what the pod requests. No node has the devices of claims without being there.
func (w *world) newNode(keep func(Change)) {
	if w.claims != nil {
		return
	}
	keep(Change{Acts: []Act{{Kind: NewNode, Key: w.needs()}}, Node: freshName})
}

// freshName is the name of a node that is like no other.
const freshName = "a new node"

// needs says what the pod requests.
func (w *world) needs() string {
	var parts []string
	for _, d := range w.demands() {
		text := fmt.Sprintf("%d %s", d.want, d.resource)
		if models := d.shape.Models.String(); models != "" {
			text += " of the model " + strings.ReplaceAll(models, "|", " or ")
		}
		parts = append(parts, text)
	}
	if cpu, mib := w.plain(); cpu > 0 || mib > 0 {
		parts = append(parts, cores(cpu)+plural(cpu/1000, " core", " cores"), memory(mib)+" of memory")
	}
	for _, name := range w.names {
		if name != pods {
			parts = append(parts, fmt.Sprintf("%d %s", w.others[name], name))
		}
	}
	return phrase.And(parts)
}

// fresh returns a node that has exactly what the pod requests.
func (w *world) fresh() Node {
	cpu, mib := w.plain()
	n := Node{Node: fleet.Empty(freshName, "", cpu, mib, 0), Others: map[string]Other{}}
	for _, d := range w.demands() {
		for range d.want {
			n.GPUs = append(n.GPUs, fleet.GPU{Free: fleet.Whole, Resource: d.resource, Unit: fleet.Whole, Physical: uint8(len(n.GPUs))})
		}
		n.Model, _, _ = strings.Cut(d.shape.Models.String(), "|")
	}
	for _, name := range w.names {
		n.Others[name] = Other{w.others[name], w.others[name]}
	}
	return n
}

// looks is equal for empty nodes on which the same pods fit.
func (n *Node) looks() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s|%s|%d|%d|", n.Kind, n.Model, n.FreeCPU, n.FreeMemory)
	for _, b := range n.Blocks {
		text.WriteString(string(b.Code) + b.Key + "|")
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		fmt.Fprintf(&text, "%s %d %d %t|", g.Resource, g.Unit, g.Free, g.Single)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Others)) {
		fmt.Fprintf(&text, "%s %d|", name, n.Others[name].Free)
	}
	return text.String()
}
