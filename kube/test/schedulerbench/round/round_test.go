package round

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

func TestJudge(t *testing.T) {
	pod := func(name string, conditions ...corev1.PodCondition) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: conditions}}
	}
	refused := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available "}
	other := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "not ready"}
	tests := map[string]struct {
		pods    []corev1.Pod
		want    string
		wantErr string
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

// TestWaits: of 200 pods that wait 1 to 200 s, 99 of 100 wait at most 198 s. One that is not bound has no time.
func TestWaits(t *testing.T) {
	created, binds, start := map[string]time.Time{}, map[string]watchbinds.Bind{}, time.Unix(0, 0)
	if got := *waits(created, binds); got != (report.Beside{}) {
		t.Errorf("%+v of no pods", got)
	}
	for i := range 200 {
		name := fmt.Sprintf("beside-%06d", i)
		created[name], binds[name] = start, watchbinds.Bind{At: start.Add(time.Duration(i+1) * time.Second)}
	}
	created["late"] = start
	if got, want := *waits(created, binds), (report.Beside{Pods: 201, Unbound: 1, MedianSeconds: 100, Seconds99: 198, MostSeconds: 200}); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
}
