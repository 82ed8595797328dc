package why

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// word sets the text of a proposal, and what the user can do.
func (w *world) word(in *Input, c *Change) {
	clauses := c.clauses((*Act).clause, func(a *Act) string { return a.do(in) }, endClause)
	where := c.Node
	if c.Acts[0].Kind == AddNode || c.Acts[0].Kind == NewNode {
		where = "that node"
	}
	c.Text = fmt.Sprintf("If %s, it would fit on %s.", phrase.And(clauses), where)
}

// clauses returns the conditions of a change, and adds what the user can do: those of each act, and of all pods that end together.
func (c *Change) clauses(clause, do func(*Act) string, ends func([]*Act) string) (clauses []string) {
	var ended []*Act
	for i := range c.Acts {
		a := &c.Acts[i]
		if a.Kind == EndPod {
			ended = append(ended, a)
			continue
		}
		clauses = append(clauses, clause(a))
		if do := do(a); do != "" && !slices.Contains(c.Do, do) {
			c.Do = append(c.Do, do)
		}
	}
	if len(ended) > 0 {
		clauses = append(clauses, ends(ended))
		c.Do = append(c.Do, endDo(ended)...)
	}
	return clauses
}

func endClause(ended []*Act) string {
	var names []string
	ending := true
	for _, a := range ended {
		names = append(names, a.Pod)
		ending = ending && a.Ending
	}
	text := "pod " + names[0]
	if len(names) > 1 {
		text = fmt.Sprintf("the %d pods %s", len(names), some(names))
	}
	if ending {
		return text + plural(int64(len(names)), ", which is being deleted, has ended", ", which are being deleted, have ended")
	}
	return text + " of " + ended[0].Node + " ended"
}

// endDo returns one command per namespace.
func endDo(ended []*Act) []string {
	var spaces []string
	names := map[string][]string{}
	for _, a := range ended {
		space, name, _ := strings.Cut(a.Pod, "/")
		if a.Ending {
			continue
		}
		if names[space] == nil {
			spaces = append(spaces, space)
		}
		names[space] = append(names[space], name)
	}
	slices.Sort(spaces)
	var commands []string
	for _, space := range spaces {
		commands = append(commands, fmt.Sprintf("kubectl delete pod -n %s %s", space, strings.Join(names[space], " ")))
	}
	return commands
}

// clause says what changes, as a condition.
func (a *Act) clause() string {
	switch a.Kind {
	case Tolerate:
		return "it tolerated the taint " + a.Key
	case SelectLess:
		return "it did not require " + a.Key
	case AcceptModel:
		if a.Key == "" {
			return "it did not require a model of GPUs"
		}
		return "it accepted the model " + a.Key
	case RepairGPU:
		return fmt.Sprintf("GPU %d of %s was healthy", a.GPU, a.Node)
	case RequestGPUs:
		return fmt.Sprintf("it requested %d %s instead of %d", a.Count, a.Key, a.Was)
	case RequestCPU:
		return fmt.Sprintf("it requested %s cores instead of %s", cores(a.Count), cores(a.Was))
	case RequestMemory:
		return fmt.Sprintf("it requested %s of memory instead of %s", memory(a.Count), memory(a.Was))
	case RequestResource:
		return "it requested " + a.Key
	case Repartition:
		return fmt.Sprintf("GPU %d of %s, which is idle, was partitioned into %d %s", a.GPU, a.Node, a.Count, strings.TrimPrefix(a.Key, migPrefix))
	case RelaxClaim:
		return a.Text
	case NewNode:
		return "there was a node with " + a.Key
	case AddNode:
		return fmt.Sprintf("there was one more node like %s (%s)", a.Node, a.Key)
	}
	return a.nodeClause()
}

// nodeClause is the clause about a node that accepts pods again.
func (a *Act) nodeClause() string {
	switch a.Kind {
	case Uncordon:
		return a.Node + " was uncordoned"
	case MakeReady:
		return a.Node + " was ready"
	case Validate:
		return "the GPUs of " + a.Node + " were validated"
	case StartAgent:
		return "the agent of " + a.Node + " ran"
	case RepairNode:
		return "the GPUs of " + a.Node + " were healthy"
	}
	return string(a.Kind)
}

// do is a command or an instruction; empty when the clause says it all.
func (a *Act) do(in *Input) string {
	space, name, _ := strings.Cut(in.Pod.Name, "/")
	again := fmt.Sprintf("create it again with the change (the request of a pod is fixed): kubectl get pod -n %s %s -o yaml", space, name)
	switch a.Kind {
	case Tolerate:
		return "add to its tolerations: " + toleration(a.Key)
	case RelaxClaim:
		return fmt.Sprintf("change the claim or its template and create the pod again: kubectl get resourceclaims,resourceclaimtemplates -n %s", space)
	case NewNode:
		return "kubectl get nodes -o wide (no node of the cluster is of that kind)"
	case SelectLess, AcceptModel, RequestGPUs, RequestCPU, RequestMemory, RequestResource:
		return again
	case Uncordon:
		return "kubectl uncordon " + a.Node
	case MakeReady:
		return "kubectl describe node " + a.Node
	case Validate:
		return "berth status --wait 10m"
	case StartAgent:
		return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + a.Node
	case RepairNode, RepairGPU:
		return "berth doctor (on " + a.Node + ", as root)"
	case Repartition:
		return fmt.Sprintf("berth mig plan %s all-%s", a.Node, strings.TrimPrefix(a.Key, migPrefix))
	}
	return ""
}

// toleration is the toleration for a taint "key=value:Effect" or "key:Effect".
func toleration(taint string) string {
	key, effect := taint, ""
	if at := strings.LastIndex(taint, ":"); at >= 0 {
		key, effect = taint[:at], taint[at+1:]
	}
	if key, value, ok := strings.Cut(key, "="); ok {
		return fmt.Sprintf("{key: %s, operator: Equal, value: %q, effect: %s}", key, value, effect)
	}
	return fmt.Sprintf("{key: %s, operator: Exists, effect: %s}", key, effect)
}
