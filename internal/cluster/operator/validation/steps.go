package validation

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// The steps of an attempt, in their order.
const (
	stepStarted   = "Started"
	stepCreated   = "PodCreated"
	stepScheduled = "PodScheduled"
	stepFinished  = "PodFinished"
	stepAccepted  = "Accepted"
)

// step returns a step that was seen; nil for one that was not.
func step(s *v1alpha1.NodeOperationStatus, name string) *v1alpha1.NodeOperationStep {
	if i := slices.IndexFunc(s.Steps, func(s v1alpha1.NodeOperationStep) bool { return s.Name == name }); i >= 0 {
		return &s.Steps[i]
	}
	return nil
}

// see adds a step, unless it is there.
func (r *Reconciler) see(s *v1alpha1.NodeOperationStatus, name, evidence string) {
	if step(s, name) == nil {
		s.Steps = append(s.Steps, v1alpha1.NodeOperationStep{Name: name, Since: metav1.NewTime(r.deps.Clock.Now()), Evidence: short(evidence)})
	}
}

// forget removes steps: what they say is undone.
func forget(s *v1alpha1.NodeOperationStatus, names ...string) {
	s.Steps = slices.DeleteFunc(s.Steps, func(s v1alpha1.NodeOperationStep) bool { return slices.Contains(names, s.Name) })
}
