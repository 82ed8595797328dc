// Package budgets finds the PodDisruptionBudgets that count a pod, the way Kubernetes' own preemption does. The plugins that end pods share
// it.
//
// It does no I/O, and must not import anything of Berth.
package budgets

import (
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Budgets are the PodDisruptionBudgets at one time.
type Budgets struct {
	// Allowed are how many disruptions each of them still allows.
	Allowed []int32

	list      []*policy.PodDisruptionBudget
	selectors []labels.Selector
}

// New returns these budgets, in their order. One whose selector cannot be read counts no pod.
func New(list []*policy.PodDisruptionBudget) *Budgets {
	b := &Budgets{list: list}
	for _, budget := range list {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			selector = labels.Nothing()
		}
		b.selectors = append(b.selectors, selector)
		b.Allowed = append(b.Allowed, budget.Status.DisruptionsAllowed)
	}
	return b
}

// Of returns the positions of the budgets that count a pod, as DefaultPreemption sees it: one with an empty selector counts none, and one
// that has already counted the pod does not do it again.
func (b *Budgets) Of(pod *v1.Pod) []int {
	if len(pod.Labels) == 0 {
		return nil
	}
	var at []int
	for i, budget := range b.list {
		if budget.Namespace != pod.Namespace || b.selectors[i].Empty() || !b.selectors[i].Matches(labels.Set(pod.Labels)) {
			continue
		}
		if _, counted := budget.Status.DisruptedPods[pod.Name]; !counted {
			at = append(at, i)
		}
	}
	return at
}
