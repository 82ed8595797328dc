package whatif

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/replay"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// maxKept bounds the scores that are kept: nodes times groups.
const maxKept = 32 << 20

// randomStream separates the random choices of a policy from other random numbers of the seed.
const randomStream = 2

// onNode is a policy on nodes whose device plugins choose the GPUs, whatever GPUs it would choose itself.
type onNode struct{ fleet.Policy }

func (p onNode) Scorer(f *fleet.Fleet) fleet.Scorer { return onNodeScorer{p.Policy.Scorer(f)} }

type onNodeScorer struct{ fleet.Scorer }

func (s onNodeScorer) Score(n *fleet.Node, shape *fleet.Shape) (fleet.Score, fleet.GPUSet) {
	score, _ := s.Scorer.Score(n, shape)
	return score, fleet.Choose(n, shape).GPUs
}

// placer places the pods of a cluster by a policy.
type placer struct {
	fleet   *fleet.Fleet
	decider *fleet.Decider
	policy  string
	scorer  fleet.Scorer
	random  *rand.Rand // nil unless the policy takes any node
	rows    []row      // of each group
}

// row is what is known for a group: the nodes where its pods may run, by index in the fleet, and for each the score at a generation.
type row struct {
	nodes       []int
	generations []uint64
	scores      []fleet.Score
}

func newPlacer(c *cluster, nodes []fleetview.View, name string, measure *fleet.Measure, seed uint64) (*placer, error) {
	list := make([]fleet.Node, len(nodes))
	for i := range nodes {
		list[i] = nodes[i].Node
	}
	f, err := fleet.New(list, seed)
	if err != nil {
		return nil, err
	}
	policy, err := replay.NewPolicy(name, measure, seed)
	if err != nil {
		return nil, err
	}
	p := &placer{fleet: f, policy: policy.Name(), rows: make([]row, len(c.groups))}
	if _, err := fleet.NewPolicy(policy.Name(), measure); err != nil {
		policy = onNode{policy}
	}
	p.decider = fleet.NewDecider(f, policy)
	p.scorer = p.decider.Scorer()
	if wrapped, ok := p.scorer.(onNodeScorer); ok {
		p.scorer = wrapped.Scorer
	}
	if p.policy == replay.PolicyRandom {
		p.random = rand.New(rand.NewPCG(seed, randomStream))
	}
	p.makeRows(c)
	return p, nil
}

func (p *placer) makeRows(c *cluster) {
	lists := map[*constraint][]int{}
	for i := range c.groups {
		of := c.groups[i].constraint
		if _, known := lists[of]; !known {
			list := []int{}
			for at := range p.fleet.Len() {
				if of.nodes[c.index[p.fleet.Node(at).Name]] {
					list = append(list, at)
				}
			}
			lists[of] = list
		}
		p.rows[i].nodes = lists[of]
	}
	if len(c.groups)*p.fleet.Len() > maxKept {
		// Groups that differ this much are rarely asked twice: they share the space, and each pod asks all its nodes.
		shared := row{generations: make([]uint64, p.fleet.Len()), scores: make([]fleet.Score, p.fleet.Len())}
		for i := range p.rows {
			p.rows[i].generations, p.rows[i].scores = shared.generations, shared.scores
		}
		return
	}
	for i := range p.rows {
		p.rows[i].generations, p.rows[i].scores = make([]uint64, len(p.rows[i].nodes)), make([]fleet.Score, len(p.rows[i].nodes))
	}
}

// place places a pod of a group where the policy wants it. The result is false, and nothing is changed, if it fits nowhere.
func (p *placer) place(c *cluster, number int) (node int, ok bool, err error) {
	g, r := &c.groups[number], &p.rows[number]
	if len(c.groups)*p.fleet.Len() > maxKept {
		clear(r.generations)
	}
	best, score, fitting := -1, fleet.NoFit, 0
	for k, at := range r.nodes {
		if generation := p.fleet.Node(at).Generation(); r.generations[k] != generation {
			r.generations[k], r.scores[k] = generation, p.ask(at, g)
		}
		switch {
		case r.scores[k] < 0:
		case p.random != nil:
			if fitting++; p.random.IntN(fitting) == 0 {
				best = at
			}
		case r.scores[k] > score:
			best, score = at, r.scores[k]
		}
	}
	if best < 0 {
		return 0, false, nil
	}
	return best, true, p.put(best, g)
}

func (p *placer) ask(at int, g *group) fleet.Score {
	if len(g.requests) == 1 {
		_, score, _ := p.decider.On(at, g.requests[0])
		return score
	}
	_, score, ok := p.decider.Together(at, g.requests)
	if !ok {
		return fleet.NoFit
	}
	return score
}

// put places all requests of a pod on a node.
func (p *placer) put(at int, g *group) error {
	ops, _, ok := p.decider.Together(at, g.requests)
	if !ok {
		return fmt.Errorf("place a pod on %s: it does not fit, although it has a score; report this", p.fleet.Node(at).Name)
	}
	for _, op := range ops {
		if err := p.fleet.Place(op); err != nil {
			return err
		}
		replay.Placed(p.scorer, op)
	}
	return nil
}

// progressEvery is the number of pods after which a run reports and looks whether it has been cancelled.
const progressEvery = 512

// placeAll places pods one after another and returns those that fit nowhere, by their index.
func (p *placer) placeAll(ctx context.Context, c *cluster, pods []pod, progress func(int)) ([]int, error) {
	var unplaced []int
	for i := range pods {
		_, ok, err := p.place(c, pods[i].group)
		if err != nil {
			return nil, err
		}
		if !ok {
			unplaced = append(unplaced, i)
		}
		if i%progressEvery == progressEvery-1 || i == len(pods)-1 {
			if progress != nil {
				progress(i%progressEvery + 1)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	return unplaced, nil
}
