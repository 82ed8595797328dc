package podwatch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidationOf(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Labels: map[string]string{"berth.dev/validation": "node"}, Annotations: map[string]string{"berth.dev/validation-key": "k"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "b"}, {Name: "a"}}},
			Status: corev1.PodStatus{Phase: corev1.PodFailed, Message: "late", ContainerStatuses: []corev1.ContainerStatus{
				{Name: "b", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "m"}}}, {Name: "a"},
			}},
		}
		change(p)
		return p
	}
	tests := map[string]struct {
		pod  *corev1.Pod
		want *Validation
	}{
		"failed":             {pod(func(*corev1.Pod) {}), &Validation{UID: "u", Name: "p", Key: "k", Ended: true, Of: 2, Refused: "late", Containers: []Result{{"b", 1, "m"}}}},
		"runs":               {pod(func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodRunning} }), &Validation{UID: "u", Name: "p", Key: "k", Of: 2}},
		"without the label":  {pod(func(p *corev1.Pod) { p.Labels = nil }), nil},
		"with another label": {pod(func(p *corev1.Pod) { p.Labels["berth.dev/validation"] = "x" }), nil},
		"without a key":      {pod(func(p *corev1.Pod) { p.Annotations = nil }), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, validationOf(tc.pod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestValidations: everybody can label a pod, so that only those of the agent's own namespace count.
func TestValidations(t *testing.T) {
	for own, want := range map[string]int{"berth-system": 1, "": 0, "other": 0} {
		w := New(Deps{Namespace: own})
		for _, namespace := range []string{"berth-system", "default"} {
			w.pods[namespace] = Pod{UID: namespace, Namespace: namespace, Validation: &Validation{UID: namespace, Key: "k"}}
		}
		if pods, known := w.Validations(); len(pods) != want || known {
			t.Errorf("namespace %q: %v, known %t, want %d pods of a watch that has not begun", own, pods, known, want)
		}
	}
}
