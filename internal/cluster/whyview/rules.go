package whyview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/why"
)

// TaintUnhealthy is the taint that the agent sets on a node with unhealthy GPUs, when it is configured to.
const TaintUnhealthy = "berth.dev/gpu-unhealthy"

// rules are those by which a pod chooses nodes. What it says about the model of the GPUs is part of its requests, and left out here.
type rules struct {
	pod      *corev1.Pod
	selector map[string]string
	affinity nodeaffinity.RequiredNodeAffinity
	// full are all rules, the model included.
	full nodeaffinity.RequiredNodeAffinity
	text string
	// shape is the first request of the pod.
	shape fleet.Shape
}

func rulesOf(pod *corev1.Pod, shape fleet.Shape) rules {
	r := rules{pod: pod, shape: shape, full: nodeaffinity.GetRequiredNodeAffinity(pod), selector: map[string]string{}}
	rest := &corev1.Pod{}
	for key, value := range pod.Spec.NodeSelector {
		if key != fleetview.ProductLabel {
			r.selector[key] = value
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		selector := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.DeepCopy()
		r.text = affinityText(selector)
		for i := range selector.NodeSelectorTerms {
			selector.NodeSelectorTerms[i] = withoutModel(selector.NodeSelectorTerms[i])
		}
		rest.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
	}
	r.affinity = nodeaffinity.GetRequiredNodeAffinity(rest)
	return r
}

// anyNode is a requirement that each node meets: a term without requirements matches none.
const anyNode = "berth.dev/no-node-has-this-label"

// withoutModel returns a term without the models that it accepts.
func withoutModel(term corev1.NodeSelectorTerm) corev1.NodeSelectorTerm {
	before := len(term.MatchExpressions)
	term.MatchExpressions = slices.DeleteFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
		return e.Key == fleetview.ProductLabel && e.Operator == corev1.NodeSelectorOpIn
	})
	if before > 0 && len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		term.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: anyNode, Operator: corev1.NodeSelectorOpDoesNotExist}}
	}
	return term
}

// affinityText writes a selector: "zone in (a, b) and disk exists".
func affinityText(selector *corev1.NodeSelector) string {
	var terms []string
	for i := range selector.NodeSelectorTerms {
		var parts []string
		term := &selector.NodeSelectorTerms[i]
		for _, e := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			text := e.Key + " " + strings.ToLower(string(e.Operator))
			if len(e.Values) > 0 {
				text += " (" + strings.Join(e.Values, ", ") + ")"
			}
			parts = append(parts, text)
		}
		terms = append(terms, strings.Join(parts, " and "))
	}
	return strings.Join(terms, ", or ")
}

// blocks returns what keeps the pod from a node, whatever is free there.
func (r *rules) blocks(n *corev1.Node, g *v1alpha1.GPUNode, view *fleet.Node) []why.Block {
	var list []why.Block
	for key, value := range r.selector {
		if n.Labels[key] != value {
			list = append(list, why.Block{Code: why.Selector, Key: "the label " + key + "=" + value})
		}
	}
	if ok, err := r.affinity.Match(n); err != nil || !ok {
		list = append(list, why.Block{Code: why.Selector, Key: "what its node affinity selects (" + r.text + ")"})
	}
	if len(list) == 0 {
		list = r.modelBlock(list, n, view)
	}
	list = append(list, r.taints(n, g)...)
	slices.SortFunc(list, func(a, b why.Block) int { return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Key, b.Key)) })
	return list
}

// modelBlock appends the label of the model where it is missing although the GPUs are of the model, and where no GPU is requested.
func (r *rules) modelBlock(list []why.Block, n *corev1.Node, view *fleet.Node) []why.Block {
	ok, err := r.full.Match(n)
	if ok && err == nil {
		return list
	}
	shape := r.shape
	if shape.GPUs > 0 && (len(view.GPUs) == 0 || !shape.Models.Allows(view.Model)) {
		return list // The model is wrong, which is a reason of its own.
	}
	model := cmp.Or(strings.ReplaceAll(shape.Models.String(), "|", " or "), r.pod.Spec.NodeSelector[fleetview.ProductLabel])
	return append(list, why.Block{Code: why.Selector, Key: "the label " + fleetview.ProductLabel + "=" + model})
}

// taints returns the taints that the pod does not tolerate. The scheduler's default is not to compare the values of tolerations as numbers.
func (r *rules) taints(n *corev1.Node, g *v1alpha1.GPUNode) []why.Block {
	all := slices.Clone(n.Spec.Taints)
	if n.Spec.Unschedulable && !slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }) {
		all = append(all, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	var list []why.Block
	for i := range all {
		t := &all[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		one := func(*corev1.Taint) bool { return true }
		if _, found := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), all[i:i+1], r.pod.Spec.Tolerations, one, false); found {
			list = append(list, blockOf(t, n, g))
		}
	}
	return list
}

// blockOf says what a taint stands for.
func blockOf(t *corev1.Taint, n *corev1.Node, g *v1alpha1.GPUNode) why.Block {
	gate := v1alpha1.TaintNotValidated
	var status *v1alpha1.GateStatus
	if g != nil && g.Status.Gate != nil {
		status = g.Status.Gate
		gate = cmp.Or(status.TaintKey, gate)
	}
	switch t.Key {
	case corev1.TaintNodeUnschedulable:
		return why.Block{Code: why.Cordoned}
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure:
		return why.Block{Code: why.NotReady, Text: notReady(t, n)}
	case gate:
		b := why.Block{Code: why.NotValidated}
		if status != nil {
			b.Text = joined(status.Code, status.Message)
		}
		return b
	case TaintUnhealthy:
		return why.Block{Code: why.Sick, Text: sick(g)}
	}
	return why.Block{Code: why.Taint, Key: t.ToString()}
}

func joined(code, message string) string {
	message, _, _ = strings.Cut(message, "\n")
	if code != "" && message != "" {
		return code + ": " + message
	}
	return code + message
}

// notReady says what a condition of the Node says.
func notReady(t *corev1.Taint, n *corev1.Node) string {
	if t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable {
		return "it has the taint " + t.ToString()
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return joined(c.Reason, c.Message)
		}
	}
	return ""
}

// sick counts the GPUs that are not healthy.
func sick(g *v1alpha1.GPUNode) string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d", g.Status.Summary.Unhealthy, g.Status.Summary.GPUs)
}
