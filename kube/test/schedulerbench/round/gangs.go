package round

import (
	"time"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/cluster"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

// binds are those of a gang.
type binds struct {
	count int
	first time.Time
	last  time.Time
	// places are the values of the label that the gang demands to be one, those of the nodes that its pods have.
	places map[string]bool
}

func (b *binds) add(at time.Time, place string) {
	if b.count == 0 || at.Before(b.first) {
		b.first = at
	}
	if at.After(b.last) {
		b.last = at
	}
	b.count++
	b.places[place] = true
}

// judgeGangs returns what became of the gangs, by the nodes that their pods have in the end. The binds took so many seconds.
func judgeGangs(o load.Objects, bound map[string]watchbinds.Bind, seconds float64) *report.Gangs {
	labels := map[string]map[string]string{}
	for i, n := range o.Nodes {
		labels[cluster.NodeName(i)] = n.Labels
	}
	gangs, all := map[string]load.Gang{}, map[string]*binds{}
	for _, g := range o.Gangs {
		gangs[g.Name], all[g.Name] = g, &binds{places: map[string]bool{}}
	}
	for i, p := range o.Pods {
		b, isBound := bound[cluster.PodName(i)]
		if g, inGang := gangs[p.Gang]; inGang && isBound {
			all[p.Gang].add(b.At, labels[b.Node][g.TopologyKey])
		}
	}
	r := &report.Gangs{Count: len(o.Gangs)}
	for _, g := range o.Gangs {
		b := all[g.Name]
		switch {
		case b.count >= g.Pods:
			r.Whole++
			r.LongestSeconds = max(r.LongestSeconds, b.last.Sub(b.first).Seconds())
		case b.count > 0:
			r.Partial++
		}
		if g.TopologyKey == "" {
			continue
		}
		r.Restricted++
		// A node without the label is nowhere, and not where another one is.
		if len(b.places) > 1 || b.places[""] {
			r.Scattered++
		}
	}
	r.PerSecond = perSecond(r.Whole, seconds)
	return r
}
