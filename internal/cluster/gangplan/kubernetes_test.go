package gangplan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOfKubernetes(t *testing.T) {
	const rack, zone = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"
	tests := map[string]struct {
		policy      *schedulingv1beta1.GangSchedulingPolicy
		key         string
		group       map[string]string
		pods        map[string]string
		want        Topology
		wantMin     int32
		wantProblem string
	}{
		"basic":           {wantMin: 1},
		"gang":            {policy: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}, wantMin: 3},
		"constraint":      {key: rack, want: Topology{Required: rack}, wantMin: 1},
		"the group's":     {group: map[string]string{AnnotationPreferred: "rack"}, want: Topology{Preferred: rack}, wantMin: 1},
		"the pods'":       {pods: map[string]string{AnnotationRequired: "rack"}, want: Topology{Required: rack}, wantMin: 1},
		"both the same":   {key: rack, pods: map[string]string{AnnotationRequired: "rack"}, want: Topology{Required: rack}, wantMin: 1},
		"both, different": {key: rack, pods: map[string]string{AnnotationRequired: "zone"}, wantMin: 1, wantProblem: `requires one domain of "` + zone + `" by an annotation, and of "` + rack + `"`},
		"segments of a basic group": {
			pods: map[string]string{AnnotationSegment: "rack", AnnotationSegmentSize: "2"}, want: Topology{SegmentLevel: rack, SegmentSize: 2}, wantMin: 1,
		},
		"segments that do not divide": {
			policy: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}, wantMin: 3, pods: map[string]string{AnnotationSegment: "rack", AnnotationSegmentSize: "2"},
			wantProblem: "has segments of 2, which does not divide its minimum of 3 members",
		},
		"no label key": {key: strings.Repeat("\n", 300), wantMin: 1, wantProblem: `which is no label key`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", Annotations: test.group}}
			group.Spec.SchedulingPolicy.Gang = test.policy
			if test.key != "" {
				group.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: test.key}}}
			}
			var pods []*corev1.Pod
			for _, name := range []string{"train-10", "train-9"} {
				pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, Annotations: test.pods}})
			}
			got := OfKubernetes(group, pods, DefaultLevels())
			if got.Min != test.wantMin || got.Members[0].Name != "train-9" || got.Key.String() != "ml/train" {
				t.Errorf("%s of at least %d, the first is %s; want ml/train, %d, train-9", got.Key, got.Min, got.Members[0].Name, test.wantMin)
			}
			if diff := cmp.Diff(test.want, got.Topology); diff != "" {
				t.Errorf("the topology differs: %s", diff)
			}
			if !strings.Contains(got.Problem, test.wantProblem) || (got.Problem == "") != (test.wantProblem == "") || len(got.Problem) > 500 || strings.Contains(got.Problem, "\n") {
				t.Errorf("the problem is %q, want %q", got.Problem, test.wantProblem)
			}
		})
	}
}
