package why

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// Answer says why a pod waits.
type Answer struct {
	// Code is the dominant reason, Sentence says it in plain words.
	Code     Code
	Sentence string
	// If says what is assumed: pods that are gone, another number of GPUs. It is empty when nothing is.
	If string
	// Nodes is how many nodes there are, Fitting on which of them the pod fits, by name.
	Nodes   int
	Fitting []string
	// Groups are the other nodes by what is in the way, the nearest ones first.
	Groups []Group
	// Notes are further facts, one sentence each.
	Notes []string
	// Changes are proposals, the smallest one first.
	Changes []Change
	// Gang is set in an answer about a gang.
	Gang *GangFacts
	// Limited is true when the search for the smallest change ended early: a smaller one is possible.
	Limited  bool
	searched bool
}

// Nothing tells whether no known change helps.
func (a *Answer) Nothing() bool {
	return a.searched && len(a.Changes) == 0 && !a.Limited
}

// Group are nodes with the same worst thing in the way.
type Group struct {
	Code Code
	Key  string
	// Text is what is in the way on the nearest node, and what else is there.
	Text string
	// Nodes are their names, the nearest one first.
	Nodes []string
	// Same is true when the same is in the way on all of them.
	Same bool
	// Worst is what is in the way on the nearest node.
	Worst Obstacle

	rank int
}

// verdict is what is in the way on a node.
type verdict struct {
	node      *Node
	obstacles []Obstacle
	rank      int
	at        int
}

// Explain says why a pod waits.
func Explain(in Input) Answer {
	w := newWorld(&in)
	answer := Answer{Nodes: len(in.Nodes), If: in.assumed(w)}
	w = w.with(in.assumptions(w))
	answer.Notes = notes(&in, w)
	if len(in.Pod.Stops) > 0 {
		in.stopped(w, &answer)
		return answer
	}
	if len(w.nodes) == 0 {
		answer.Code, answer.Sentence = NoNodes, waits("the cluster has no nodes.")
		w.propose(&in, &answer)
		return answer
	}
	verdicts := w.judge(&answer)
	answer.Groups = group(verdicts)
	if len(answer.Fitting) > 0 {
		answer.Code, answer.Sentence = in.fitting(&answer)
		return answer
	}
	w.dominate(&answer, verdicts)
	w.propose(&in, &answer)
	return answer
}

// propose sets the changes with which the pod fits.
func (w *world) propose(in *Input, answer *Answer) {
	s := &search{left: limit}
	answer.Changes = w.changes(s)
	answer.Limited, answer.searched = s.limited, true
	for i := range answer.Changes {
		w.word(in, &answer.Changes[i])
	}
}

// assumptions are the acts of what is assumed.
func (in *Input) assumptions(w *world) []Act {
	var acts []Act
	for _, name := range in.Gone {
		acts = append(acts, Act{Kind: EndPod, Pod: name})
	}
	if in.GPUs > 0 {
		acts = append(acts, Act{Kind: RequestGPUs, Count: int64(in.GPUs)})
	}
	return acts
}

// judge asks each node, and returns what is in the way on those on which the pod does not fit, the nearest one first.
func (w *world) judge(answer *Answer) []verdict {
	var verdicts []verdict
	for i := range w.nodes {
		n := &w.nodes[i]
		obstacles := w.obstacles(n)
		if len(obstacles) == 0 {
			answer.Fitting = append(answer.Fitting, n.Name)
			continue
		}
		v := verdict{node: n, obstacles: obstacles}
		v.rank, v.at = place(obstacles[0].Code)
		verdicts = append(verdicts, v)
	}
	slices.SortStableFunc(verdicts, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(len(a.obstacles), len(b.obstacles)), cmp.Compare(a.at, b.at),
			cmp.Compare(a.obstacles[0].missing(), b.obstacles[0].missing()), cmp.Compare(a.node.Name, b.node.Name))
	})
	return verdicts
}

// missing is how much lacks.
func (o *Obstacle) missing() int64 { return o.Want - o.Have }

// group makes groups of nodes with the same worst thing in the way, in the order of the nearest of each.
func group(verdicts []verdict) []Group {
	var groups []Group
	for i := range verdicts {
		v := &verdicts[i]
		worst := v.obstacles[0]
		at := slices.IndexFunc(groups, func(g Group) bool { return g.Code == worst.Code && g.Key == worst.Key })
		if at < 0 {
			at = len(groups)
			groups = append(groups, Group{Code: worst.Code, Key: worst.Key, Text: describe(v), Worst: worst, Same: true, rank: v.rank})
		}
		groups[at].Nodes = append(groups[at].Nodes, v.node.Name)
		groups[at].Same = groups[at].Same && groups[at].Text == describe(v)
	}
	return groups
}

// dominate finds the dominant reason: of the nearest nodes, that of most of them.
func (w *world) dominate(answer *Answer, verdicts []verdict) {
	first := &verdicts[0]
	var near []verdict
	for _, v := range verdicts {
		if v.rank == first.rank && len(v.obstacles) == len(first.obstacles) {
			near = append(near, v)
		}
	}
	groups := group(near)
	best := 0
	for i := range groups {
		_, a := place(groups[i].Code)
		_, b := place(groups[best].Code)
		if more := len(groups[i].Nodes) - len(groups[best].Nodes); more > 0 || more == 0 && a < b {
			best = i
		}
	}
	g := &groups[best]
	same := slices.DeleteFunc(near, func(v verdict) bool { return v.obstacles[0].Code != g.Code || v.obstacles[0].Key != g.Key })
	answer.Code, answer.Sentence = w.because(g, same)
	// The group of the dominant reason comes first.
	slices.SortStableFunc(answer.Groups, func(a, b Group) int {
		dominant := func(x *Group) int {
			if x.Code == g.Code && x.Key == g.Key {
				return 0
			}
			return 1
		}
		return cmp.Compare(dominant(&a), dominant(&b))
	})
}

// fitting is the answer for a pod that fits.
func (in *Input) fitting(answer *Answer) (Code, string) {
	where := answer.Fitting[0]
	if more := len(answer.Fitting) - 1; more > 0 {
		where += fmt.Sprintf(" and on %s", phrase.Count(more, "more node"))
	}
	if answer.If != "" {
		return Fits, fmt.Sprintf("The pod fits on %s.", where)
	}
	text := fmt.Sprintf("The pod fits on %s now", where)
	switch {
	case in.Pod.Reserved != nil:
		return Reserves, text + in.Pod.Reserved.sentence()
	case len(in.Pod.NotJudged) > 0:
		return Fits, text + " as far as can be seen here; what is not checked: " + phrase.And(in.Pod.NotJudged) + "."
	case in.Pod.Unseen:
		return NoScheduler, fmt.Sprintf("%s, but waits for the scheduler %q, and no pod of the cluster shows that it runs.", text, in.Pod.Scheduler)
	case in.Now > 0 && in.Pod.Created > 0 && in.Now-in.Pod.Created < young:
		return Fits, fmt.Sprintf("%s; it was created %d s ago.", text, max(0, in.Now-in.Pod.Created))
	}
	return Fits, fmt.Sprintf("%s; the scheduler %s has not assigned it yet.", text, in.Pod.Scheduler)
}

// sentence ends a sentence about what fits.
func (r *Reserved) sentence() string {
	text := fmt.Sprintf(", but the scheduler has reserved places there for gang %s until %s at the latest: before that it places only pods of a priority above %d there", r.Gang, r.Until, r.Priority)
	if r.Before != "" {
		text += ", and those whose activeDeadlineSeconds end before " + r.Before
	}
	return text + "."
}

// young is how long a pod may wait for a scheduler that does its work, in seconds.
const young = 15

// assumed says what is assumed.
func (in *Input) assumed(w *world) string {
	var parts []string
	if len(in.Gone) > 0 {
		verb := "were gone"
		if len(in.Gone) == 1 {
			verb = "was gone"
		}
		parts = append(parts, phrase.And(in.Gone)+" "+verb)
	}
	if in.GPUs > 0 {
		resource := "GPUs"
		if d := w.demands(); len(d) > 0 {
			resource = cmp.Or(d[0].resource, resource)
		}
		parts = append(parts, fmt.Sprintf("it requested %d %s", in.GPUs, resource))
	}
	if len(parts) == 0 {
		return ""
	}
	return "if " + phrase.And(parts)
}

// maxNotes bounds how many notes of nodes an answer has.
const maxNotes = 3

// notes collects facts that decide nothing.
func notes(in *Input, w *world) []string {
	result := slices.Clone(in.Notes)
	var about []string
	for i := range w.nodes {
		if n := &w.nodes[i]; n.Note != "" {
			about = append(about, fmt.Sprintf("Node %s: %s.", n.Name, n.Note))
		}
	}
	result = append(result, about[:min(len(about), maxNotes)]...)
	if more := len(about) - maxNotes; more > 0 {
		result = append(result, fmt.Sprintf("There are notes about %s.", phrase.Count(more, "more node")))
	}
	if in.Pod.Message != "" && len(in.Pod.Stops) == 0 {
		result = append(result, "The scheduler says: "+in.Pod.Message)
	}
	return result
}
