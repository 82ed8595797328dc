package gangs

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// presence is whether a gang has its least number of members on nodes.
type presence uint8

const (
	// presenceNone: no member has a node, or it is not known how many have to.
	presenceNone presence = iota
	// presencePartial: fewer than the least number have a node, and the gang was not whole before.
	presencePartial
	// presenceWhole: the least number of members had a node, and at least one still has.
	presenceWhole
)

// occupancy is the presence of a gang on nodes and what belongs to it. Its methods and note write it; adopt sets followed, and changes of
// pods set dirty and gained.
type occupancy struct {
	presence presence
	// partialSince is since when the gang is partial and has not got more members on nodes (presencePartial).
	partialSince time.Time
	// have is how many had a node at the last look.
	have int
	// followed is true where this scheduler has planned the gang from the beginning, so that its presence is not a guess.
	followed bool
	// dirty is true from a change until note, gained from when a member got a node until note.
	dirty  bool
	gained bool
}

// setPresence moves a gang to a presence other than presencePartial.
func (o *occupancy) setPresence(p presence) { o.presence, o.partialSince = p, time.Time{} }

// setPartial moves a gang to presencePartial, or begins its time again.
func (o *occupancy) setPartial(now time.Time) { o.presence, o.partialSince = presencePartial, now }

// restartPartial begins the time of a partial gang again.
func (o *occupancy) restartPartial(now time.Time) {
	if o.presence == presencePartial {
		o.partialSince = now
	}
}

// note notes whether a gang has its least number of members on nodes.
func (r *registry) note(g *gang) {
	g.dirty, g.gained = false, false
	view, have := r.build(g), 0
	for _, pod := range view.Members {
		if pod.Spec.NodeName != "" {
			have++
		}
	}
	more := have > g.have
	g.have = have
	switch {
	case have == 0:
		g.setPresence(presenceNone)
		r.holds.dropLost(g.key)
	case view.Min == 0:
		// How many it needs is not known.
		if g.presence == presencePartial {
			g.setPresence(presenceNone)
		}
	case have >= gangplan.Least(view):
		g.setPresence(presenceWhole)
		g.endPreemptions()
		r.holds.dropLost(g.key)
	case g.presence == presenceNone || g.presence == presencePartial && more:
		g.setPartial(r.clock.Now())
	}
}

// beforeLoss notes whether a gang has its least number of members on nodes, before it loses a member: the keeper may not have looked since
// the last one got its node.
func (r *registry) beforeLoss(g *gang) {
	if g.gained {
		r.note(g)
	}
}

// living counts the pods of a gang that have not ended.
func (g *gang) living() (count int) {
	for _, pod := range g.pods {
		if pod.Status.Phase != v1.PodSucceeded {
			count++
		}
	}
	return count
}
