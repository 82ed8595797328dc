package model

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Copy returns a model of the state at the last Sync, in which gangs can be planned beside the scheduling cycle: Plans, End, Renew, Stands,
// Requests, Offered, Topology and what reads nodes. It belongs to one goroutine. It is for the scheduling cycle.
func (m *Model) Copy() *Model {
	c := New(Deps{})
	c.resources.Store(m.resources.Load())
	c.offers = true
	if m.fleet == nil {
		return c
	}
	c.fleet, c.views, c.version = m.fleet.Copy(), slices.Clone(m.views), m.version
	c.snapshot, c.index, c.nodes = slices.Clone(m.snapshot), slices.Clone(m.index), slices.Clone(m.nodes)
	for key, t := range m.topologies {
		c.topologies[key] = t.Copy()
	}
	_, _ = m.decider(fleet.PolicyPack) // The mix is the same for all policies, and measured when one is asked for; this one exists.
	// A measure remembers what it was asked, so that each model has its own, of the same mix.
	c.mix.typical, c.mix.current = m.mix.typical, fleet.NewMeasure(m.mix.typical)
	return c
}

// Renew returns a plan that was made of another state as it is now, see gang.Planner. It is for the scheduling cycle.
func (m *Model) Renew(policy string, levels []string, g *gang.Gang, held []Held, old *gang.Plan, b gang.Budget) (plan gang.Plan, kept []int, refusal *gang.Refusal, err error) {
	err = m.beside(policy, held, b, func(planner *gang.Planner) (err error) {
		plan, kept, refusal, err = planner.Renew(m.Topology(levels), g, old)
		return err
	})
	return plan, kept, refusal, err
}

// Stands tells whether holders still have to end for a plan, see gang.Planner. It is for the scheduling cycle.
func (m *Model) Stands(policy string, levels []string, g *gang.Gang, held []Held, holders *gang.Holders, plan *gang.Plan, b gang.Budget) (stands bool, err error) {
	err = m.beside(policy, held, b, func(planner *gang.Planner) (err error) {
		stands, err = planner.Stands(m.Topology(levels), g, holders, plan)
		return err
	})
	return stands, err
}
