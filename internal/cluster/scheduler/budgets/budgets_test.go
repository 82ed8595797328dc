package budgets

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func budget(namespace string, selector *metav1.LabelSelector, disrupted ...string) *policy.PodDisruptionBudget {
	b := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: policy.PodDisruptionBudgetSpec{Selector: selector}}
	b.Status.DisruptionsAllowed, b.Status.DisruptedPods = 2, map[string]metav1.Time{}
	for _, name := range disrupted {
		b.Status.DisruptedPods[name] = metav1.Time{}
	}
	return b
}

// TestBudgets: a budget counts the pods that DefaultPreemption counts.
func TestBudgets(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	tests := map[string]struct {
		list []*policy.PodDisruptionBudget
		pod  map[string]string // its labels
		want []int
	}{
		"its labels":                     {[]*policy.PodDisruptionBudget{budget("a", web)}, map[string]string{"app": "web"}, []int{0}},
		"other labels":                   {[]*policy.PodDisruptionBudget{budget("a", web)}, map[string]string{"app": "db"}, nil},
		"no labels":                      {[]*policy.PodDisruptionBudget{budget("a", web)}, nil, nil},
		"another namespace":              {[]*policy.PodDisruptionBudget{budget("b", web)}, map[string]string{"app": "web"}, nil},
		"an empty selector":              {[]*policy.PodDisruptionBudget{budget("a", &metav1.LabelSelector{})}, map[string]string{"app": "web"}, nil},
		"no selector":                    {[]*policy.PodDisruptionBudget{budget("a", nil)}, map[string]string{"app": "web"}, nil},
		"it has counted the pod already": {[]*policy.PodDisruptionBudget{budget("a", web, "pod")}, map[string]string{"app": "web"}, nil},
		"it has counted another pod":     {[]*policy.PodDisruptionBudget{budget("a", web, "other")}, map[string]string{"app": "web"}, []int{0}},
		"the selector cannot be read": {
			[]*policy.PodDisruptionBudget{budget("a", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "like"}}})},
			map[string]string{"app": "web"}, nil,
		},
		"several": {[]*policy.PodDisruptionBudget{budget("a", web), budget("b", web), budget("a", web)}, map[string]string{"app": "web"}, []int{0, 2}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := New(test.list)
			if got := b.Of(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "pod", Labels: test.pod}}); !slices.Equal(got, test.want) {
				t.Errorf("the budgets %v count the pod; want %v", got, test.want)
			}
			for i, allowed := range b.Allowed {
				if allowed != 2 {
					t.Errorf("budget %d allows %d disruptions; want 2", i, allowed)
				}
			}
		})
	}
}
