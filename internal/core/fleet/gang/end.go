package gang

import (
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Holders are the pods that could end for a gang.
type Holders struct {
	// List has them, the most important first.
	List []Holder
	// Held are the devices that are free once holders have ended. Devices that a pod which cannot end holds, too, are not among them.
	Held []Held
	// Budgets are how many disruptions each PodDisruptionBudget still allows.
	Budgets []int32
}

// Holder is pods that end together.
type Holder struct {
	// Pods is how many pods end with it: at least 1.
	Pods     int
	Priority int32
	// Started is when the first of them started, in any unit; higher is later.
	Started int64
	// Budgets are, for each pod that budgets count, the positions of those in Holders.Budgets.
	Budgets [][]int
	// With are positions in Holders.List of those that end with it, such as the surplus members of a gang that ends. They can end
	// without it.
	With []int
	// Parts are what of CPU and memory is free on which node when it has ended; each node once.
	Parts []Part
}

// Part is what is free on a node when a holder has ended: CPU in thousandths of a core, memory in MiB.
type Part struct {
	Node   int
	CPU    int64
	Memory int64
}

// Held is devices of a node that are free once each of some holders has ended.
type Held struct {
	Node int
	// Holders are positions in Holders.List.
	Holders []int
	// GPUs are the entries of the node, Amount what is free of each then, in thousandths; 0 stands for one device.
	GPUs   fleet.GPUSet
	Amount int32
	// Traffic is what the holder says that it needs much of.
	Traffic fleet.Traffic
}

// Ended says which holders end for a gang, and what the gang gets then.
type Ended struct {
	// Holders are positions in Holders.List, ascending, with those that end with others.
	Holders []int
	// Violations is how many of their pods the PodDisruptionBudgets do not allow to end, in the order of the holders.
	Violations int
	// Priority is the highest of the holders, Pods how many pods end.
	Priority int32
	Pods     int
	// Plan is where the members go then.
	Plan Plan
	// Exact is true where no other holders have fewer violations, a lower highest priority, or fewer pods, in this order.
	Exact bool
}

// End returns which holders have to end so that a gang fits. The result is nil if the gang fits without ending anything, and if it does
// not fit even when all have ended. Class.Capacity and Others of the gang are what other rules allow once all holders have ended. The
// fleet does not change.
//
// The order of answers is: fewer violations of budgets; a lower highest priority; fewer pods; a narrower level of topology for the least
// number of members, from the preferred to the required one; a later start of the holders with the highest priority; less important
// holders by their order. Nothing ends for members beyond the least number. No holder of the answer can be left out. The error is ErrSteps
// where the budget is used up.
func (p *Planner) End(t *Topology, g *Gang, h *Holders) (*Ended, error) {
	if err := g.validate(t, p.fleet.Len()); err != nil {
		return nil, err
	}
	var ended *Ended
	err := p.bounded(func() (err error) {
		ended, err = p.end(t, g, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ended, nil
}

// end is End for a gang that can be.
func (p *Planner) end(t *Topology, g *Gang, h *Holders) (*Ended, error) {
	e, err := p.newEnding(t, g, h)
	if err != nil || e.boundApart() != nil {
		return nil, err
	}
	if now := p.newRun(t, g); now.fitsOn(g.Required) {
		return nil, nil
	}
	set, exact := e.search()
	if set == nil {
		return nil, nil
	}
	plan, refusal, err := e.plan(g, set)
	if refusal != nil && !e.slow {
		// The policy gives members other GPUs than a device plugin would, so that fewer fit.
		e.slow, e.run = true, p.newRun(t, g)
		if set, exact = e.search(); set == nil {
			return nil, nil
		}
		plan, refusal, err = e.plan(g, set)
	}
	if refusal != nil || err != nil {
		return nil, err
	}
	w := e.worth(set)
	return &Ended{Holders: positions(set), Violations: w.violations, Priority: w.priority, Pods: w.pods, Plan: plan, Exact: exact}, nil
}

// plan plans a gang on the fleet without the holders of a set.
func (e *ending) plan(g *Gang, set []bool) (Plan, *Refusal, error) {
	if err := e.show(set); err != nil {
		return Plan{}, nil, err
	}
	plans, refusal, err := e.newRun(e.topology, g).plans(1)
	if len(plans) == 0 {
		return Plan{}, refusal, err
	}
	return plans[0], refusal, err
}

// show sets the nodes of the fleet to what they are without the holders of a set.
func (e *ending) show(set []bool) error {
	for node, s := range e.sites {
		if s == nil || !s.differs(set) {
			continue
		}
		n, err := s.question.Without(s.local(set))
		if err != nil {
			return err
		}
		if err := e.fleet.Override(node, n); err != nil {
			return err
		}
		for k, h := range s.holders {
			s.shown[k] = set[h]
		}
	}
	return nil
}

// fitsOn tells whether the least number of members fits in a domain of a level.
func (r *run) fitsOn(level int) bool {
	for _, d := range r.topology.domains(level, r.gang.Required) {
		if r.has(d) && r.takes(d) {
			return true
		}
	}
	return false
}

// takes tells whether the least number of members fits in a domain.
func (r *run) takes(d domain) bool {
	switch {
	case r.space == nil && r.gang.Segment.Size > 0:
		return false
	case r.space == nil:
		_, ok := r.inDomain(d, r.separate(r.gang.Min))
		return ok
	case r.gang.Segment.Size > 0:
		_, ok := r.segments(d, r.gang.Min)
		return ok
	}
	target := r.prefix[r.gang.Min]
	if len(r.space.counts) == 1 {
		return r.capacity(d.nodes, target) >= target
	}
	return r.divide(r.tables(d.nodes), target).reach[target]
}

// worth is what is compared of two sets of holders.
type worth struct {
	violations int
	priority   int32
	pods       int
	level      int
	// started is when the first holder with the highest priority started, importance the sum over the holders, each less than the one
	// before it in the list.
	started    int64
	importance int64
}

// worth returns what the holders of a set are worth; its level is 0.
func (e *ending) worth(set []bool) worth {
	w := worth{priority: lowestPriority}
	budgets := fleet.NewDisruptions(e.holders.Budgets)
	for i := range e.holders.List {
		if set[i] {
			w.add(&e.holders.List[i], e.importance(i))
			w.violations += budgets.End(e.holders.List[i].Budgets)
		}
	}
	return w
}

// add counts a holder, without its violations.
func (w *worth) add(h *Holder, importance int64) {
	w.pods += h.Pods
	w.importance += importance
	switch {
	case h.Priority > w.priority:
		w.priority, w.started = h.Priority, h.Started
	case h.Priority == w.priority:
		w.started = min(w.started, h.Started)
	}
}

func (e *ending) importance(holder int) int64 { return int64(len(e.holders.List) - holder) }
