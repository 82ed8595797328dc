package round

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	pod := func(name string, conditions ...corev1.PodCondition) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: conditions}}
	}
	refused := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available "}
	other := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "not ready"}
	tests := map[string]struct {
		pods          []corev1.Pod
		want, wantErr string
	}{
		"all refused":       {pods: []corev1.Pod{pod("a", other, refused), pod("b", refused)}, want: "a: 0/3 nodes are available"},
		"one not looked at": {pods: []corev1.Pod{pod("a", refused), pod("b", other)}, wantErr: "nothing of pod b"},
		"none":              {wantErr: "the watch missed some"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := judge(tc.pods)
			if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("judge = %q, %v; want %q, %q", got, err, tc.want, tc.wantErr)
			}
		})
	}
}
