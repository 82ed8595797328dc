package gangplan

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// object returns a PodGroup as the API server decodes one.
func object(spec any, metadata ...map[string]any) *unstructured.Unstructured {
	all := map[string]any{"namespace": "ml", "name": "train", "uid": "group", "creationTimestamp": "1970-01-01T00:01:40Z"}
	for _, more := range metadata {
		maps.Copy(all, more)
	}
	return &unstructured.Unstructured{Object: map[string]any{"metadata": all, "spec": spec}}
}

type fields = map[string]any

func TestParseGroup(t *testing.T) {
	const fix = ": set it to the number of pods that have to start together"
	tests := map[string]struct {
		source Source
		object *unstructured.Unstructured
		want   Group
	}{
		"scheduler-plugins": {source: SchedulerPlugins, object: object(fields{"minMember": int64(8)}), want: Group{Min: 8}},
		"Volcano":           {source: Volcano, object: object(fields{"minMember": int64(8), "queue": "default"}), want: Group{Min: 8}},
		"a timeout, which counts for nothing": {
			source: SchedulerPlugins, object: object(fields{"minMember": int64(8), "scheduleTimeoutSeconds": int64(-1)}), want: Group{Min: 8},
		},
		"soft topology of Volcano": {
			source: Volcano, object: object(fields{"minMember": int64(8), "networkTopology": fields{"mode": "soft", "highestTierAllowed": int64(2)}}), want: Group{Min: 8},
		},
		"fields that are empty": {
			source: Volcano, want: Group{Min: 8},
			object: object(fields{"minMember": int64(8), "minTaskMember": fields{}, "subGroupPolicy": []any{}, "networkTopology": fields{}}),
		},
		"fields of Volcano in the other API": {
			source: SchedulerPlugins, object: object(fields{"minMember": int64(8), "minTaskMember": fields{"a": int64(1)}}), want: Group{Min: 8},
		},
		"topology": {
			source: SchedulerPlugins, object: object(fields{"minMember": int64(8)}, fields{"annotations": fields{AnnotationRequired: "rack", "other": "value"}}),
			want: Group{Min: 8, annotations: map[string]string{AnnotationRequired: "rack"}},
		},
		"being deleted": {
			source: SchedulerPlugins, object: object(fields{"minMember": int64(8)}, fields{"deletionTimestamp": "1970-01-01T00:02:00Z"}), want: Group{Min: 8, Deleting: true},
		},
		"largest": {source: SchedulerPlugins, object: object(fields{"minMember": int64(2147483647)}), want: Group{Min: 2147483647}},
		"no spec": {
			source: SchedulerPlugins, object: object(nil), want: Group{Problem: "PodGroup ml/train of scheduling.x-k8s.io does not set spec.minMember" + fix},
		},
		"spec is a text": {
			source: Volcano, object: object("minMember"), want: Group{Problem: "PodGroup ml/train of scheduling.volcano.sh does not set spec.minMember" + fix},
		},
		"zero": {
			source: Volcano, object: object(fields{"minMember": int64(0)}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "0", not a whole number from 1 to 2147483647` + fix},
		},
		"negative": {
			source: Volcano, object: object(fields{"minMember": int64(-1)}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "-1", not a whole number from 1 to 2147483647` + fix},
		},
		"too large": {
			source: Volcano, object: object(fields{"minMember": int64(2147483648)}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "2147483648", not a whole number from 1 to 2147483647` + fix},
		},
		"a fraction": {
			source: Volcano, object: object(fields{"minMember": 1.5}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "1.5", not a whole number from 1 to 2147483647` + fix},
		},
		"a text": {
			source: Volcano, object: object(fields{"minMember": "8\n"}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "8\n", not a whole number from 1 to 2147483647` + fix},
		},
		"a list": {
			source: Volcano, object: object(fields{"minMember": []any{}}),
			want: Group{Problem: `spec.minMember of PodGroup ml/train of scheduling.volcano.sh is "[]interface {}", not a whole number from 1 to 2147483647` + fix},
		},
		"minimum of tasks": {
			source: Volcano, object: object(fields{"minMember": int64(8), "minTaskMember": fields{"worker": int64(8)}}),
			want: Group{Min: 8, Problem: "PodGroup ml/train of scheduling.volcano.sh sets spec.minTaskMember, which Berth does not support: " +
				"set spec.minMember to the number of all pods or use Volcano's scheduler for its pods"},
		},
		"groups in the group": {
			source: Volcano, object: object(fields{"minMember": int64(8), "subGroupPolicy": []any{fields{"name": "a"}}}),
			want: Group{Min: 8, Problem: "PodGroup ml/train of scheduling.volcano.sh sets spec.subGroupPolicy, which Berth does not support: " +
				"use the annotations berth.dev/topology-segment and berth.dev/topology-segment-size or use Volcano's scheduler for its pods"},
		},
		"hard topology, which is the default": {
			source: Volcano, object: object(fields{"minMember": int64(8), "networkTopology": fields{"highestTierAllowed": int64(2)}}),
			want: Group{Min: 8, Problem: "PodGroup ml/train of scheduling.volcano.sh sets spec.networkTopology, which Berth does not support: " +
				"use the annotation berth.dev/topology-required or use Volcano's scheduler for its pods"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.want.UID, tc.want.Created = "group", second(100)
			got := ParseGroup(tc.source, tc.object)
			got.Created.Time = got.Created.UTC()
			if diff := cmp.Diff(tc.want, *got, cmp.AllowUnexported(Group{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}
