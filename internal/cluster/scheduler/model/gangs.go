package model

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Held is what a pod that has no node yet is promised on a node.
type Held struct {
	// Node is the index of the node.
	Node     int
	Requests []fleet.Shape
}

// Plans plans a gang beside what is held for others, and returns up to a number of plans, the best first. Levels are label keys of nodes,
// the widest first, without that of the node. The error is gang.ErrSteps where the budget is used up. It is for the scheduling cycle.
func (m *Model) Plans(policy string, levels []string, g *gang.Gang, held []Held, limit int, b gang.Budget) (plans []gang.Plan, refusal *gang.Refusal, err error) {
	err = m.beside(policy, held, b, func(planner *gang.Planner) (err error) {
		plans, refusal, err = planner.Plans(m.Topology(levels), g, limit)
		return err
	})
	return plans, refusal, err
}

// End returns which holders have to end so that a gang fits beside what is held for others; nil where that is of no use, or not necessary.
// The error is gang.ErrSteps where the budget is used up. It is for the scheduling cycle.
func (m *Model) End(policy string, levels []string, g *gang.Gang, held []Held, holders *gang.Holders, b gang.Budget) (ended *gang.Ended, err error) {
	err = m.beside(policy, held, b, func(planner *gang.Planner) (err error) {
		ended, err = planner.End(m.Topology(levels), g, holders)
		return err
	})
	return ended, err
}

// beside has a planner work on the fleet without what is held.
func (m *Model) beside(policy string, held []Held, b gang.Budget, work func(*gang.Planner) error) error {
	d, err := m.decider(policy)
	if err != nil {
		return err
	}
	planner := m.planners[policy]
	if planner == nil {
		planner = gang.NewPlanner(d)
		m.planners[policy] = planner
	}
	return m.withHeld(d, held, func() error {
		planner.Bound(b)
		return work(planner)
	})
}

// withHeld does some work on the fleet without what is held.
func (m *Model) withHeld(d *fleet.Decider, held []Held, work func() error) error {
	mark := m.fleet.Checkpoint()
	defer m.fleet.Rollback(mark)
	for _, h := range held {
		ops, _, ok := d.Together(h.Node, h.Requests)
		if !ok {
			continue // There is less than was promised: it does not fit beside what is there anyway.
		}
		for _, op := range ops {
			if err := m.fleet.Place(op); err != nil {
				return err
			}
		}
	}
	return work()
}

// maxTopologies bounds the topologies that are kept: gangs choose the label keys.
const maxTopologies = 32

// Topology returns the topology of the nodes by these label keys. It is for the scheduling cycle.
func (m *Model) Topology(levels []string) *gang.Topology {
	key := strings.Join(levels, ",")
	if t := m.topologies[key]; t != nil {
		return t
	}
	if len(m.topologies) == maxTopologies {
		clear(m.topologies)
	}
	t := gang.NewTopology(m.fleet, levels, func(level int, node string) string {
		if i, ok := m.fleet.Find(node); ok && m.nodes[i] != nil {
			return m.nodes[i].Labels[levels[level]]
		}
		return ""
	})
	m.topologies[key] = t
	return t
}

// Touch has a node computed again at the next Sync. It is for pods that the scheduler adds to its snapshot and takes from it in a pod group
// cycle: the generation of their node stays the same. Any goroutine may call it.
func (m *Model) Touch(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed[node] = true
}

// At returns the index of the node at a position of the snapshot that Sync was given last.
func (m *Model) At(position int) int { return m.index[position] }

// Version changes when anything does by which pods are placed. It is for the scheduling cycle.
func (m *Model) Version() uint64 { return m.version }

// GangState is the key of a scheduling cycle's state under which the plugin for gangs notes that the pod is a member of one.
const GangState = "BerthGangs"

// Offered tells whether a resource is one of GPUs, which the model counts. Any goroutine may call it.
func (m *Model) Offered(name corev1.ResourceName) bool { return m.resources.Load().Is(name) }
