package round

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

func TestJudgeGangs(t *testing.T) {
	const rack = "rack"
	begin := time.Unix(0, 0)
	on := func(node string, second int) watchbinds.Bind {
		return watchbinds.Bind{Node: node, At: begin.Add(time.Duration(second) * time.Second)}
	}
	// The pods 0 and 1 are those of a gang, 2 and 3 those of another one. The nodes 0 and 1 are in a rack, 2 in another one, 3 in none.
	objects := func(key string) load.Objects {
		return load.Objects{
			Nodes: []load.Node{{Labels: map[string]string{rack: "r1"}}, {Labels: map[string]string{rack: "r1"}}, {Labels: map[string]string{rack: "r2"}}, {}},
			Pods:  []load.Pod{{Gang: "a"}, {Gang: "a"}, {Gang: "b"}, {Gang: "b"}},
			Gangs: []load.Gang{{Name: "a", Pods: 2, TopologyKey: key}, {Name: "b", Pods: 2, TopologyKey: key}},
		}
	}
	tests := map[string]struct {
		key   string
		bound map[string]watchbinds.Bind
		want  report.Gangs
	}{
		"none": {want: report.Gangs{Count: 2}},
		"all": {bound: map[string]watchbinds.Bind{"pod-000000": on("node-00000", 1), "pod-000001": on("node-00002", 2),
			"pod-000002": on("node-00001", 2), "pod-000003": on("node-00001", 9)},
			want: report.Gangs{Count: 2, Whole: 2, PerSecond: 0.2, LongestSeconds: 7}},
		"one, and a part of the other": {bound: map[string]watchbinds.Bind{"pod-000000": on("node-00000", 4), "pod-000001": on("node-00002", 1),
			"pod-000002": on("node-00001", 9)},
			want: report.Gangs{Count: 2, Whole: 1, Partial: 1, PerSecond: 0.1, LongestSeconds: 3}},
		"other pods": {bound: map[string]watchbinds.Bind{"running-00000-0": on("node-00000", 1)}, want: report.Gangs{Count: 2}},
		"within a rack": {key: rack, bound: map[string]watchbinds.Bind{"pod-000000": on("node-00000", 1), "pod-000001": on("node-00001", 1),
			"pod-000002": on("node-00002", 1), "pod-000003": on("node-00002", 1)},
			want: report.Gangs{Count: 2, Whole: 2, Restricted: 2, PerSecond: 0.2}},
		"in two racks": {key: rack, bound: map[string]watchbinds.Bind{"pod-000000": on("node-00000", 1), "pod-000001": on("node-00002", 1)},
			want: report.Gangs{Count: 2, Whole: 1, Restricted: 2, Scattered: 1, PerSecond: 0.1}},
		"in no rack": {key: rack, bound: map[string]watchbinds.Bind{"pod-000000": on("node-00003", 1), "pod-000001": on("node-00003", 1)},
			want: report.Gangs{Count: 2, Whole: 1, Restricted: 2, Scattered: 1, PerSecond: 0.1}},
		"a part of a gang in two racks": {key: rack, bound: map[string]watchbinds.Bind{"pod-000000": on("node-00003", 1)},
			want: report.Gangs{Count: 2, Partial: 1, Restricted: 2, Scattered: 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(&tc.want, judgeGangs(objects(tc.key), tc.bound, 10)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSumRefusals(t *testing.T) {
	created := time.Unix(100, 0)
	at := func(milliseconds int, message string) watchbinds.Refusal {
		return watchbinds.Refusal{Message: message, At: created.Add(time.Duration(milliseconds) * time.Millisecond)}
	}
	tests := map[string]struct {
		refused map[string]watchbinds.Refusal
		want    report.Refusal
	}{
		"none": {},
		"one message": {refused: map[string]watchbinds.Refusal{"b": at(20, "x"), "a": at(500, "x"), "c": at(40, "x")},
			want: report.Refusal{Pods: 3, FirstSeconds: 0.02, Seconds: 0.5, Messages: []string{"x"}}},
		"two messages": {refused: map[string]watchbinds.Refusal{"a": at(10, "y"), "b": at(20, "x")},
			want: report.Refusal{Pods: 2, FirstSeconds: 0.01, Seconds: 0.02, Messages: []string{"x", "y"}}},
		"before the last pod was created": {refused: map[string]watchbinds.Refusal{"a": at(-5, "x"), "b": at(20, "x")},
			want: report.Refusal{Pods: 2, Seconds: 0.02, Messages: []string{"x"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(&tc.want, sumRefusals(tc.refused, created)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
