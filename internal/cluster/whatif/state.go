package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Reason says why GPUs are idle.
type Reason string

// Why GPUs are idle, in the order in which they are looked for.
const (
	// AgentDown: the Node does not offer devices that its GPUNode lists as healthy.
	AgentDown Reason = "AgentDown"
	// Unhealthy and Draining: the GPUs cannot be allocated.
	Unhealthy Reason = "Unhealthy"
	Draining  Reason = "Draining"
	// NotValidated: the node has not been validated.
	NotValidated Reason = "NotValidated"
	// Cordoned and NotReady: the Node accepts no pods.
	Cordoned Reason = "Cordoned"
	NotReady Reason = "NotReady"
	// NotRequested: no pod requests the resource.
	NotRequested Reason = "NotRequested"
	// Excluded: pods request the resource, but select other nodes or models, or do not tolerate the taints.
	Excluded Reason = "Excluded"
	// CPUOrMemory: there are enough GPUs for some pods, but too little CPU or memory.
	CPUOrMemory Reason = "CPUOrMemory"
	// TooFew: too few of the node's GPUs are free for the pods that request the resource.
	TooFew Reason = "TooFew"
	// Fits: pods like those of the cluster would fit; there are no more of them.
	Fits Reason = "Fits"
)

// reasons are all of them, in the order in which they are reported.
func reasons() []Reason {
	return []Reason{AgentDown, Unhealthy, Draining, NotValidated, Cordoned, NotReady, CPUOrMemory, TooFew, Excluded, NotRequested, Fits}
}

// Idle counts idle GPUs.
type Idle struct {
	Reason Reason  `json:"reason"`
	GPUs   float64 `json:"gpus"`
	Nodes  int     `json:"nodes"`
	// Example is the node with most of them, the first by name among equals, and Text what is there.
	Example string `json:"example"`
	Text    string `json:"text"`
}

// percent returns part of whole in per cent; 0 of nothing.
func percent(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

// whole is thousandths as whole GPUs.
func whole(milli int64) float64 { return float64(milli) / fleet.Whole }

// state measures nodes, which are those of the members.
func (c *cluster) state(nodes []*fleet.Node, measure *fleet.Measure) State {
	s := State{Nodes: len(nodes), UnplacedShapes: []UnplacedShape{}, Devices: []Devices{}, Idle: []Idle{}}
	type kind struct {
		model    string
		resource string
	}
	type sums struct {
		all  int64
		held int64
	}
	counts := map[kind]*sums{}
	var all, held, usable, lost, stranded int64
	for _, n := range nodes {
		for i := range n.GPUs {
			g := &n.GPUs[i]
			key := kind{n.Model, g.Resource}
			if counts[key] == nil {
				counts[key] = &sums{}
			}
			counts[key].all += int64(g.Total())
			counts[key].held += int64(g.Total()) - int64(g.Free)
			all, held = all+int64(g.Total()), held+int64(g.Total())-int64(g.Free)
		}
		usable, lost, stranded = usable+n.Idle(), lost+measure.Fragmentation(n), stranded+measure.Stranded(n)
	}
	unit := float64(measure.Unit()) * fleet.Whole
	s.GPUs, s.Held, s.Usable, s.AllocatedPercent = whole(all), whole(held), whole(usable), percent(float64(held), float64(all))
	s.FragmentationPercent, s.FragmentationOfIdlePercent = percent(float64(lost)/unit, s.GPUs), percent(float64(lost)/unit, s.Usable)
	s.StrandedOfIdlePercent = percent(float64(stranded)/unit, s.Usable)
	for key, sum := range counts {
		s.Devices = append(s.Devices, Devices{key.model, key.resource, whole(sum.all), whole(sum.held), percent(float64(sum.held), float64(sum.all))})
	}
	slices.SortFunc(s.Devices, func(a, b Devices) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Resource, b.Resource))
	})
	s.Idle = c.idle(nodes)
	return s
}

// idle says for all GPUs that are idle why they are.
func (c *cluster) idle(nodes []*fleet.Node) []Idle {
	type found struct {
		gpus    int64
		most    int64
		nodes   int
		example string
		text    string
	}
	all := map[Reason]*found{}
	for i, n := range nodes {
		ofNode := map[Reason]int64{}
		texts := map[Reason]string{}
		for _, resource := range resourcesOf(n) {
			c.idleOf(i, n, resource, ofNode, texts)
		}
		for reason, milli := range ofNode {
			f := all[reason]
			if f == nil {
				f = &found{}
				all[reason] = f
			}
			f.gpus, f.nodes = f.gpus+milli, f.nodes+1
			if milli > f.most { // the members are in the order of their names
				f.most, f.example, f.text = milli, n.Name, texts[reason]
			}
		}
	}
	list := []Idle{}
	for _, reason := range reasons() {
		if f := all[reason]; f != nil {
			list = append(list, Idle{reason, whole(f.gpus), f.nodes, f.example, f.text})
		}
	}
	return list
}

// resourcesOf returns the resources of a node's devices, sorted.
func resourcesOf(n *fleet.Node) []string {
	var names []string
	for i := range n.GPUs {
		names = append(names, n.GPUs[i].Resource)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// idleOf adds the idle devices of a resource on a node, by reason.
func (c *cluster) idleOf(at int, n *fleet.Node, resource string, add map[Reason]int64, texts map[Reason]string) {
	usable := int64(0)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Resource != resource || g.Free == 0 {
			continue
		}
		switch {
		case g.State == fleet.Draining:
			add[Draining] += int64(g.Free)
			texts[Draining] = "GPUs are draining"
		case g.State > fleet.Draining && c.silent(at, resource):
			add[AgentDown] += int64(g.Free)
			texts[AgentDown] = fmt.Sprintf("the Node offers no %s", resource)
		case g.State > fleet.Draining:
			add[Unhealthy] += int64(g.Free)
			texts[Unhealthy] = "GPUs are unhealthy or gone"
		default:
			usable += int64(g.Free)
		}
	}
	if usable == 0 {
		return
	}
	reason, text := c.closed(at)
	if reason == "" {
		reason, text = c.unused(at, n, resource)
	}
	add[reason] += usable
	if texts[reason] == "" {
		texts[reason] = text
	}
}

// silent tells whether the Node does not offer a resource.
func (c *cluster) silent(at int, resource string) bool {
	quantity := c.members[at].node.Status.Allocatable[corev1.ResourceName(resource)]
	return quantity.Sign() <= 0
}

// closed says why a node accepts no pods; empty for one that does.
func (c *cluster) closed(at int) (Reason, string) {
	m := &c.members[at]
	if m.gpuNode != nil {
		if gate := m.gpuNode.Status.Gate; gate != nil && gate.State != v1alpha1.GateValidated && gate.Tainted {
			return NotValidated, fmt.Sprintf("the node is %s, not Validated", gate.State)
		}
	}
	if m.node.Spec.Unschedulable {
		return Cordoned, "the Node is cordoned"
	}
	if taint, found := notReady(m.node); found {
		return NotReady, "the Node has the taint " + taint
	}
	return "", ""
}

// notReady returns the taint of a node that does not work.
func notReady(node *corev1.Node) (string, bool) {
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if schedules(t) && strings.HasPrefix(t.Key, "node.kubernetes.io/") && t.Key != corev1.TaintNodeUnschedulable {
			return t.Key, true
		}
	}
	return "", false
}

// closedTo tells whether a Node keeps pods away that do not tolerate its state.
func closedTo(node *corev1.Node) bool {
	if _, found := notReady(node); found || node.Spec.Unschedulable {
		return true
	}
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Value == v1alpha1.TaintNotValidatedValue && schedules(&t) })
}

// unused says why no pod has the usable devices of a resource. Of the kinds of pods that request it, the one with most pods is the example.
func (c *cluster) unused(at int, n *fleet.Node, resource string) (Reason, string) {
	requested, best, pods := false, TooFew, 0
	var text string
	for i := range c.groups {
		g := &c.groups[i]
		if !slices.ContainsFunc(g.requests, func(s fleet.Shape) bool { return s.Resource == resource }) {
			continue
		}
		requested = true
		if !g.constraint.nodes[at] || !g.requests[0].Models.Allows(n.Model) {
			continue
		}
		reason, why := lacks(n, g)
		if order := rank(reason) - rank(best); pods == 0 || order > 0 || order == 0 && g.pods > pods {
			best, text, pods = reason, why, g.pods
		}
	}
	switch {
	case !requested:
		return NotRequested, fmt.Sprintf("no pod requests %s", resource)
	case pods == 0:
		return Excluded, fmt.Sprintf("the pods that request %s select other nodes or models, or do not tolerate the taints", resource)
	}
	return best, text
}

// rank orders the reasons of one node: the one that says that most is possible counts.
func rank(r Reason) int { return slices.Index([]Reason{TooFew, CPUOrMemory, Fits}, r) }

// lacks says what a node lacks for a pod of a group. Of a pod of several requests it looks at each by itself.
func lacks(n *fleet.Node, g *group) (Reason, string) {
	for i := range g.requests {
		switch reason := fleet.Fit(n, g.requests[i]); reason.Lack {
		case fleet.None:
		case fleet.CPU, fleet.Memory:
			return CPUOrMemory, reason.String()
		default:
			return TooFew, reason.String()
		}
	}
	return Fits, "a pod of " + g.text() + " would fit"
}
