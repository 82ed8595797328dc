package fleet

// maxCells bounds the scores that are kept, over all shapes: 48 MiB. The scores of leastRows shapes are kept in any case.
const (
	maxCells  = 2 << 20
	leastRows = 16
)

// Stats counts the work of a Decider.
type Stats struct {
	// Decisions counts the questions, Evaluations how often a node was checked for a shape, Scores how often the policy was
	// asked.
	Decisions   uint64
	Evaluations uint64
	Scores      uint64
}

// Decider chooses nodes by a policy. What it knows of a node for a shape it asks again only after the node has changed.
type Decider struct {
	fleet  *Fleet
	policy Policy
	scorer Scorer
	rows   map[Shape]*row
	stats  Stats
}

// row is what is known for a shape: for each node the generation at which it was asked, the score and the GPUs.
type row struct {
	generations []uint64
	scores      []Score
	gpus        []GPUSet
	used        uint64
}

// NewDecider returns a decider for a fleet.
func NewDecider(f *Fleet, policy Policy) *Decider {
	return &Decider{fleet: f, policy: policy, scorer: policy.Scorer(f), rows: map[Shape]*row{}}
}

// Policy returns the policy.
func (d *Decider) Policy() Policy { return d.policy }

// Scorer returns the policy's scorer for the fleet.
func (d *Decider) Scorer() Scorer { return d.scorer }

// Fleet returns the fleet.
func (d *Decider) Fleet() *Fleet { return d.fleet }

// Stats returns the work since the beginning.
func (d *Decider) Stats() Stats { return d.stats }

// Best returns where a pod of shape s goes: the node with the highest score, the first one among equals. It places nothing.
// The result is false if the pod fits nowhere.
func (d *Decider) Best(s Shape) (Op, bool) {
	r := d.row(s)
	best, score := -1, NoFit
	for i, generation := range d.fleet.generations {
		if r.generations[i] != generation {
			d.evaluate(r, i, &s)
		}
		if r.scores[i] > score {
			best, score = i, r.scores[i]
		}
	}
	if best < 0 {
		return Op{Node: -1}, false
	}
	return Op{Node: best, GPUs: r.gpus[best], Shape: s}, true
}

// Scores appends the score of each node for a pod of shape s, by index; a negative one says that it does not fit.
func (d *Decider) Scores(s Shape, scores []Score) []Score {
	r := d.row(s)
	for i, generation := range d.fleet.generations {
		if r.generations[i] != generation {
			d.evaluate(r, i, &s)
		}
	}
	return append(scores, r.scores...)
}

// row returns what is known for a shape. A new one replaces the one that was not used for longest, if there are too many.
func (d *Decider) row(s Shape) *row {
	d.stats.Decisions++
	r := d.rows[s]
	if r == nil {
		n := d.fleet.Len()
		if len(d.rows) >= max(leastRows, maxCells/max(1, n)) {
			d.forget()
		}
		r = &row{generations: make([]uint64, n), scores: make([]Score, n), gpus: make([]GPUSet, n)}
		d.rows[s] = r
	}
	r.used = d.stats.Decisions
	return r
}

func (d *Decider) forget() {
	var oldest Shape
	age := ^uint64(0)
	for shape, r := range d.rows {
		if r.used < age {
			oldest, age = shape, r.used
		}
	}
	delete(d.rows, oldest)
}

func (d *Decider) evaluate(r *row, i int, s *Shape) {
	n := &d.fleet.nodes[i]
	d.stats.Evaluations++
	r.generations[i] = n.generation
	if !Fits(n, s) {
		r.scores[i] = NoFit
		return
	}
	d.stats.Scores++
	if n.oneByOne(s) {
		ops, score, _ := d.Together(i, []Shape{*s})
		r.scores[i], r.gpus[i] = score, 0
		for _, op := range ops {
			r.gpus[i] |= op.GPUs
		}
		return
	}
	r.scores[i], r.gpus[i] = d.scorer.Score(n, s)
}

// On returns what a pod of shape s would get on node i, and the node's score. The result is false if it does not fit there.
func (d *Decider) On(i int, s Shape) (Op, Score, bool) {
	r := d.row(s)
	if r.generations[i] != d.fleet.generations[i] {
		d.evaluate(r, i, &s)
	}
	return Op{Node: i, GPUs: r.gpus[i], Shape: s}, r.scores[i], r.scores[i] >= 0
}

// Together returns what a pod of several requests would get on node i: operations in their order, and the node's score, which is that of
// the request that is served worst. A request for several replicas or MIG devices is an operation for each. The result is false if the
// requests do not all fit there. Only a single request is remembered.
func (d *Decider) Together(i int, requests []Shape) ([]Op, Score, bool) {
	n := &d.fleet.nodes[i]
	if len(requests) == 1 && !n.oneByOne(&requests[0]) {
		op, score, ok := d.On(i, requests[0])
		return []Op{op}, score, ok
	}
	mark := d.fleet.Checkpoint()
	defer d.fleet.Rollback(mark)
	var ops []Op
	worst := NoFit
	for _, s := range requests {
		if !Fits(n, &s) {
			return nil, NoFit, false
		}
		for _, piece := range n.Pieces(s) {
			if !Fits(n, &piece) {
				return nil, NoFit, false
			}
			score, gpus := d.scorer.Score(n, &piece)
			op := Op{Node: i, GPUs: gpus, Shape: piece}
			if d.fleet.Place(op) != nil {
				return nil, NoFit, false
			}
			if len(ops) == 0 || score < worst {
				worst = score
			}
			ops = append(ops, op)
		}
	}
	return ops, worst, len(ops) > 0
}

// Pieces returns a request as the requests for single devices that it is on n, or as it is.
func (n *Node) Pieces(s Shape) []Shape {
	if !n.oneByOne(&s) {
		return []Shape{s}
	}
	var pieces []Shape
	for range s.GPUs {
		piece := s
		piece.GPUs = 1
		if len(pieces) > 0 {
			piece.CPU, piece.Memory = 0, 0
		}
		pieces = append(pieces, piece)
	}
	return pieces
}
