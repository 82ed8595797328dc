package gang

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// maxRows bounds the kinds of gangs for which tables of nodes are kept.
const maxRows = 32

// Planner plans gangs on the fleet of a decider, by the decider's policy.
type Planner struct {
	fleet     *fleet.Fleet
	policy    fleet.Policy
	scorer    fleet.Scorer
	losses    fleet.Losses // nil where the policy has none
	rows      map[string]*row
	byContent byContent
	clock     uint64
	stats     planStats
	budget    Budget
	// spent are the steps of the question, asked at how many it was asked whether to stop.
	spent   uint64
	asked   uint64
	stopped bool
	over    bool
}

// planStats counts the work of a Planner.
type planStats struct {
	// Tables counts the tables of nodes that were sought since the node had changed.
	Tables uint64
	// Steps counts steps, see Budget.
	Steps uint64
}

// row has the tables of all nodes for gangs of the same classes.
type row struct {
	classes     string
	tables      []table
	generations []uint64
	used        uint64
}

// NewPlanner returns a planner for the fleet of a decider.
func NewPlanner(d *fleet.Decider) *Planner {
	losses, _ := d.Scorer().(fleet.Losses)
	return &Planner{fleet: d.Fleet(), policy: d.Policy(), scorer: d.Scorer(), losses: losses, rows: map[string]*row{}, byContent: newByContent()}
}

// keyOf names classes with numbers of members.
func keyOf(classes []Class, counts []int32) string {
	var key strings.Builder
	for c := range classes {
		fmt.Fprintf(&key, "%d of %#v;", counts[c], classes[c].Requests)
	}
	return key.String()
}

// row returns the tables for gangs of these classes and numbers of members.
func (p *Planner) row(classes []Class, counts []int32) *row {
	key := keyOf(classes, counts)
	p.clock++
	r := p.rows[key]
	if r == nil {
		if len(p.rows) >= maxRows {
			p.forget()
		}
		n := p.fleet.Len()
		r = &row{classes: key, tables: make([]table, n), generations: make([]uint64, n)}
		p.rows[key] = r
	}
	r.used = p.clock
	return r
}

// forget drops the row that was not used for longest.
func (p *Planner) forget() {
	oldest, age := "", ^uint64(0)
	for key, r := range p.rows {
		if r.used < age {
			oldest, age = key, r.used
		}
	}
	delete(p.rows, oldest)
}

// table returns the combinations of members that fit on node i.
func (p *Planner) table(r *row, i int, classes []Class, s *space) table {
	n := p.fleet.Node(i)
	if r.tables[i] != nil && r.generations[i] == n.Generation() {
		return r.tables[i]
	}
	p.stats.Tables++
	r.tables[i], r.generations[i] = p.byContent.of(r.classes, n, func() table { return p.compute(i, classes, s) }), n.Generation()
	return r.tables[i]
}

// compute is table without what is known.
func (p *Planner) compute(i int, classes []Class, s *space) table {
	w := walk{Planner: p, node: i, classes: classes, space: s}
	if p.losses != nil {
		w.before = p.losses.Loss(p.fleet.Node(i))
	}
	mark := p.fleet.Checkpoint()
	w.place(0, 0, Cost{})
	p.fleet.Rollback(mark)
	slices.SortFunc(w.found, func(a, b entry) int { return a.state - b.state })
	return w.found
}

// walk finds what fits on one node.
type walk struct {
	*Planner
	node    int
	classes []Class
	space   *space
	before  int64
	found   table
}

// place notes the combinations that are those placed and any number of the classes from c on.
func (w *walk) place(c, state int, cost Cost) {
	if c == len(w.classes) {
		if state > 0 {
			cost.Nodes = 1
			if w.losses != nil {
				cost.Loss = w.losses.Loss(w.fleet.Node(w.node)) - w.before
			}
		}
		w.found = append(w.found, entry{state, cost})
		return
	}
	w.place(c+1, state, cost)
	mark := w.fleet.Checkpoint()
	defer w.fleet.Rollback(mark)
	for range w.space.counts[c] {
		more, ok := w.member(&w.classes[c])
		if !ok {
			return
		}
		state, cost = state+w.space.strides[c], cost.plus(more)
		w.place(c+1, state, cost)
	}
}

// member places a member on the node, and returns what its GPUs cost.
func (w *walk) member(class *Class) (Cost, bool) {
	w.spend(memberSteps)
	n, cost := w.fleet.Node(w.node), Cost{}
	for _, request := range class.Requests {
		if !fleet.Fits(n, &request) {
			return cost, false
		}
		for _, piece := range n.Pieces(request) {
			if !fleet.Fits(n, &piece) {
				return cost, false
			}
			score, gpus := w.scorer.Score(n, &piece)
			if w.fleet.Place(fleet.Op{Node: w.node, GPUs: gpus, Shape: piece}) != nil {
				return cost, false
			}
			parts := score.Parts(w.policy)
			more := Cost{Degraded: parts.Degraded, Crowded: parts.Crowded, Links: parts.Links, Broken: parts.Broken}
			for i := range gpus.All() {
				more.Slack -= int64(piece.Of(&n.GPUs[i]))
			}
			cost = cost.plus(more)
		}
	}
	return cost, true
}
