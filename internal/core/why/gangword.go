package why

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// word sets the text of a change of a gang, and what the user can do.
func (g *gangWorld) word(c *Change, r *asked) {
	clauses := c.clauses((*Act).gangClause, g.do, gangEnds)
	c.Text = fmt.Sprintf("If %s, the gang would fit %s.", phrase.And(shorten(clauses)), g.where(r))
}

// maxClauses bounds the clauses of a sentence.
const maxClauses = 6

// shorten leaves out clauses of a long list. All of them are among the acts.
func shorten(clauses []string) []string {
	if len(clauses) <= maxClauses {
		return clauses
	}
	return append(slices.Clone(clauses[:maxClauses]), fmt.Sprintf("%d more things changed", len(clauses)-maxClauses))
}

// gangClause says what changes, as a condition.
func (a *Act) gangClause() string {
	switch a.Kind {
	case FewerMembers:
		return fmt.Sprintf("its minimum was %d %s instead of %d", a.Count, plural(a.Count, "member", "members"), a.Was)
	case OtherLevel:
		if a.Key == "" {
			return "it did not require one " + a.Text
		}
		return fmt.Sprintf("it required one %s instead of one %s", a.Key, a.Text)
	case AddNode:
		if a.Count > 1 {
			return fmt.Sprintf("there were %d more nodes like %s (%s)", a.Count, a.Node, a.Key)
		}
	}
	text := a.clause()
	if rest, ok := strings.CutPrefix(text, "it "); ok {
		return "its members " + rest
	}
	return text
}

// gangEnds names the pods and gangs that end.
func gangEnds(ended []*Act) string {
	var parts, names, gangs []string
	count := map[string]int{}
	ending := true
	for _, a := range ended {
		ending = ending && a.Ending
		if a.Gang == "" {
			names = append(names, a.Pod)
			continue
		}
		if count[a.Gang] == 0 {
			gangs = append(gangs, a.Gang)
		}
		count[a.Gang]++
	}
	for _, name := range gangs {
		parts = append(parts, fmt.Sprintf("the gang %s (%d %s)", name, count[name], plural(int64(count[name]), "pod", "pods")))
	}
	switch len(names) {
	case 0:
	case 1:
		parts = append(parts, "pod "+names[0])
	default:
		parts = append(parts, fmt.Sprintf("the %d pods %s", len(names), some(names)))
	}
	text := phrase.And(parts)
	if !ending {
		return text + " ended"
	}
	if len(ended) == 1 {
		return text + ", which is being deleted, has ended"
	}
	return text + ", which are being deleted, have ended"
}

// do is a command or an instruction; empty when the clause says it all.
func (g *gangWorld) do(a *Act) string {
	commands := &g.in.Commands
	switch a.Kind {
	case FewerMembers:
		return strings.ReplaceAll(commands.Minimum, Value, fmt.Sprint(a.Count))
	case OtherLevel:
		if a.Key == "" {
			return commands.NoLevel
		}
		return strings.ReplaceAll(commands.Level, Value, a.Key)
	case SelectLess, AcceptModel, RequestGPUs, RequestCPU, RequestMemory, RequestResource:
		return "change the pod template and create the members again (the request of a pod is fixed): " + commands.Show
	}
	return a.do(&g.in.Classes[0])
}
