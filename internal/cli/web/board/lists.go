package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/problem"
)

// problems adds what is wrong with a node and with its GPUs.
func (b *builder) problems(n *v1alpha1.GPUNode) {
	add := func(uuid string, c *v1alpha1.Cause) {
		made := v1alpha1.BoardProblem{
			Code: c.Code, Severity: string(problem.Warning), Node: n.Name, GPU: uuid, Message: b.text(c.Message), Fix: b.text(c.Recover), Since: c.Since,
		}
		if known, ok := problem.Find(c.Code); ok {
			made.Severity, made.Fix = string(known.Severity), cmp.Or(made.Fix, known.Fix)
		}
		b.board.Problems = append(b.board.Problems, made)
	}
	for i := range n.Status.Problems {
		add("", &n.Status.Problems[i])
	}
	for i := range n.Status.Devices {
		d := &n.Status.Devices[i]
		for k := range d.Health.Causes {
			add(d.UUID, &d.Health.Causes[k])
		}
		for k := range d.MIGDevices {
			m := &d.MIGDevices[k]
			if m.Health == nil {
				continue
			}
			for c := range m.Health.Causes {
				// A fault of the whole GPU is listed once.
				if !slices.ContainsFunc(d.Health.Causes, func(o v1alpha1.Cause) bool { return o.Code == m.Health.Causes[c].Code }) {
					add(m.UUID, &m.Health.Causes[c])
				}
			}
		}
	}
}

// awayNodes adds that nodes are away: a few one by one, many together.
func (b *builder) awayNodes() {
	away := map[string][]string{}
	count := 0
	for i := range b.board.Nodes {
		if n := &b.board.Nodes[i]; n.Away != "" {
			reason, _, _ := strings.Cut(n.Away, " since ")
			away[reason] = append(away[reason], n.Name)
			count++
		}
	}
	b.manyAway = count > mostAway
	if b.manyAway {
		for reason, names := range away {
			b.board.Problems = append(b.board.Problems, v1alpha1.BoardProblem{
				Code: awayCode(reason), Severity: string(problem.Error), Message: fmt.Sprintf("%d nodes: %s: %s; what is shown of them was written before", len(names), reason, phrase.Some(names, mostAway)),
				Fix: "berth status, and kubectl -n berth-system get pods -o wide",
			})
		}
		return
	}
	for i := range b.board.Nodes {
		if n := &b.board.Nodes[i]; n.Away != "" {
			b.board.Problems = append(b.board.Problems, v1alpha1.BoardProblem{
				Code: awayCode(n.Away), Severity: string(problem.Error), Node: n.Name, Message: n.Away + "; what is shown of it was written before",
				Fix: "kubectl describe node " + n.Name + ", and berth doctor " + n.Name,
			})
		}
	}
}

// awayCode returns the code of the problem that a node is away for a reason.
func awayCode(reason string) string {
	if reason == noAgent {
		return "AGENT_NOT_READY"
	}
	return "NODE_NOT_READY"
}

// severities are in the order in which problems are listed.
func severities() []string {
	return []string{string(problem.Error), string(problem.Warning), string(problem.Info)}
}

// finish sorts the lists that all nodes add to.
func (b *builder) finish() {
	slices.SortStableFunc(b.board.Problems, func(x, y v1alpha1.BoardProblem) int {
		return cmp.Or(slices.Index(severities(), x.Severity)-slices.Index(severities(), y.Severity),
			strings.Compare(x.Node, y.Node), strings.Compare(x.GPU, y.GPU), strings.Compare(x.Code, y.Code), strings.Compare(x.Message, y.Message))
	})
	if more := len(b.board.Problems) - mostProblems; more > 0 {
		b.board.Problems = b.board.Problems[:mostProblems]
		b.board.Notes = append(b.board.Notes, fmt.Sprintf("%d more problems are not shown; select a node or a model", more))
	}
	b.board.Namespaces = b.namespacesHeld()
	slices.Sort(b.board.Notes)
	b.board.Notes = slices.Compact(b.board.Notes)
}

func boolean(is bool) int {
	if is {
		return 1
	}
	return 0
}

// wait adds what waits, as far as the user may see it.
func (b *builder) wait() {
	for i := range b.in.Waiting {
		w := b.in.Waiting[i]
		if !b.shows(w.Namespace) || b.in.Filter.Namespace != "" && b.in.Filter.Namespace != w.Namespace {
			continue
		}
		if len(b.board.Waiting) == mostWaiting {
			b.board.MoreWaiting++
			continue
		}
		w.Name = short(w.Name)
		if why := b.in.Reasons.Pods[w.Namespace+"/"+w.Pod]; why != nil {
			w.Sentence = b.text(why.Sentence)
			if len(why.Changes) > 0 {
				w.Change = b.text(why.Changes[0].Message)
			}
			b.board.WaitingTime = new(metav1.NewTime(b.in.Reasons.Time.UTC()))
		}
		b.board.Waiting = append(b.board.Waiting, w)
	}
}

// faulty tells whether a MIG device of a node is not healthy, whatever its GPU is.
func faulty(n *v1alpha1.BoardNode) bool {
	return slices.ContainsFunc(n.GPUs, func(g v1alpha1.BoardGPU) bool {
		return slices.ContainsFunc(g.Parts, func(p v1alpha1.BoardPart) bool { return !gpu.State(p.State).Allocatable() })
	})
}

// group counts the nodes by model where there are too many for one page. A node with a GPU or MIG device that is not healthy stays, and
// one that is away unless many are.
func (b *builder) group() {
	most := cmp.Or(b.in.MostNodes, defaultMostNodes)
	f := &b.in.Filter
	if f.All || f.Node != "" || f.Model != "" {
		most = mostAll
	}
	if len(b.board.Nodes) <= most {
		return
	}
	var kept []v1alpha1.BoardNode
	groups, free := map[string]*v1alpha1.BoardGroup{}, map[string]map[int]int{}
	for i := range b.board.Nodes {
		n := b.board.Nodes[i]
		if (n.Away != "" && !b.manyAway || n.Counts.Unhealthy > 0 || faulty(&n)) && len(kept) < most {
			kept = append(kept, n)
			continue
		}
		g := groups[n.Counts.Model]
		if g == nil {
			g = &v1alpha1.BoardGroup{Model: n.Counts.Model}
			groups[n.Counts.Model], free[n.Counts.Model] = g, map[int]int{}
		}
		g.Nodes++
		g.Away += boolean(n.Away != "")
		g.Counts.GPUs, g.Counts.Held = g.Counts.GPUs+n.Counts.GPUs, g.Counts.Held+n.Counts.Held
		g.Counts.Free, g.Counts.Unhealthy = g.Counts.Free+n.Counts.Free, g.Counts.Unhealthy+n.Counts.Unhealthy
		free[n.Counts.Model][n.Counts.Free]++
	}
	b.board.Nodes = kept
	if kept == nil {
		b.board.Nodes = []v1alpha1.BoardNode{}
	}
	for model, g := range groups {
		for gpus, nodes := range free[model] {
			g.Free = append(g.Free, v1alpha1.BoardFree{GPUs: gpus, Nodes: nodes})
		}
		slices.SortFunc(g.Free, func(x, y v1alpha1.BoardFree) int { return cmp.Compare(y.GPUs, x.GPUs) })
		b.board.Groups = append(b.board.Groups, *g)
	}
	slices.SortFunc(b.board.Groups, func(x, y v1alpha1.BoardGroup) int { return strings.Compare(x.Model, y.Model) })
}
