package gangplan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const (
	zone = "topology.kubernetes.io/zone"
	rack = "topology.kubernetes.io/rack"
)

func annotations(pairs ...string) option {
	return func(p *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func TestTopology(t *testing.T) {
	const (
		kueueRequired, kueuePreferred   = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
		kueueUnconstrained, kueueLayers = "kueue.x-k8s.io/podset-unconstrained-topology", "kueue.x-k8s.io/podset-slice-required-topology-constraints"
		kueueSlice, kueueSize           = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
		kaiRequired, kaiPreferred       = "kai.scheduler/topology-required-placement", "kai.scheduler/topology-preferred-placement"
		kaiSegment, kaiSize             = "kai.scheduler/segment-topology-required-placement", "kai.scheduler/segment-size"
	)
	tests := map[string]struct {
		// all are annotations of all four members, one are more of the second one, group are those of the PodGroup.
		all         []string
		one         []string
		group       map[string]string
		levels      Levels
		want        Topology
		wantProblem string
	}{
		"none":                            {all: []string{"other", "x"}},
		"alias":                           {all: []string{AnnotationRequired, "rack"}, want: Topology{Required: rack}},
		"label key":                       {all: []string{AnnotationRequired, rack}, want: Topology{Required: rack}},
		"label key of no level":           {all: []string{AnnotationRequired, "example.com/pod"}, want: Topology{Required: "example.com/pod"}},
		"alias of the configuration":      {all: []string{AnnotationRequired, "rack"}, levels: Levels{{"rack", "example.com/rack"}}, want: Topology{Required: "example.com/rack"}},
		"clique and node":                 {all: []string{AnnotationRequired, "clique", AnnotationPreferred, "node"}, want: Topology{Required: "nvidia.com/gpu.clique", Preferred: "kubernetes.io/hostname"}},
		"zone and block":                  {all: []string{AnnotationRequired, "zone", AnnotationPreferred, "block"}, want: Topology{Required: zone, Preferred: "topology.kubernetes.io/block"}},
		"preferred":                       {all: []string{AnnotationPreferred, "rack"}, want: Topology{Preferred: rack}},
		"required and preferred":          {all: []string{AnnotationRequired, "zone", AnnotationPreferred, "rack"}, want: Topology{Required: zone, Preferred: rack}},
		"the same level":                  {all: []string{AnnotationRequired, "rack", AnnotationPreferred, "rack"}, want: Topology{Required: rack, Preferred: rack}},
		"order of unknown levels":         {all: []string{AnnotationRequired, "a", AnnotationPreferred, "zone"}, want: Topology{Required: "a", Preferred: zone}},
		"segments":                        {all: []string{AnnotationSegment, "clique", AnnotationSegmentSize, "2"}, want: Topology{SegmentLevel: "nvidia.com/gpu.clique", SegmentSize: 2}},
		"segments in a domain":            {all: []string{AnnotationRequired, "zone", AnnotationSegment, "rack", AnnotationSegmentSize, "4"}, want: Topology{Required: zone, SegmentLevel: rack, SegmentSize: 4}},
		"one member says it":              {one: []string{AnnotationRequired, "rack"}, want: Topology{Required: rack}},
		"two names of a level":            {all: []string{AnnotationRequired, "rack"}, one: []string{AnnotationRequired, rack}, want: Topology{Required: rack}},
		"empty":                           {all: []string{AnnotationRequired, "", AnnotationPreferred, "rack"}, one: []string{AnnotationPreferred, ""}, want: Topology{Preferred: rack}},
		"Kueue":                           {all: []string{kueueRequired, zone, kueueSlice, rack, kueueSize, "2"}, want: Topology{Required: zone, SegmentLevel: rack, SegmentSize: 2}},
		"Kueue's preferred":               {all: []string{kueuePreferred, rack}, want: Topology{Preferred: rack}},
		"Kueue's unconstrained":           {all: []string{kueueUnconstrained, "true"}, want: Topology{Unconstrained: true}},
		"Kueue's unconstrained is false":  {all: []string{kueueUnconstrained, "false", kueueRequired, rack}, want: Topology{Required: rack}},
		"KAI":                             {all: []string{kaiRequired, zone, kaiPreferred, rack}, want: Topology{Required: zone, Preferred: rack}},
		"KAI's segments":                  {all: []string{kaiSegment, rack, kaiSize, "2"}, want: Topology{SegmentLevel: rack, SegmentSize: 2}},
		"KAI's size without a level":      {all: []string{kaiSize, "3"}, want: Topology{}},
		"Berth before Kueue":              {all: []string{kueueRequired, zone, kueuePreferred, rack}, one: []string{AnnotationRequired, "block"}, want: Topology{Required: "topology.kubernetes.io/block"}},
		"Kueue before KAI":                {all: []string{kueueRequired, zone, kaiRequired, rack, kaiPreferred, rack}, want: Topology{Required: zone}},
		"Berth before what is bad":        {all: []string{kueueLayers, "[]", kaiSize, "x", AnnotationPreferred, "rack"}, want: Topology{Preferred: rack}},
		"the PodGroup":                    {group: map[string]string{AnnotationRequired: "rack"}, want: Topology{Required: rack}},
		"the PodGroup and pods the other": {group: map[string]string{AnnotationRequired: "zone"}, all: []string{AnnotationPreferred, "rack"}, want: Topology{Required: zone, Preferred: rack}},

		"the PodGroup and pods differ": {
			group: map[string]string{AnnotationRequired: "zone"}, all: []string{AnnotationRequired, "rack"},
			wantProblem: `gang ml/train has two values of berth.dev/topology-required: "zone" of PodGroup ml/train of scheduling.x-k8s.io and "rack" of pod a-0; set the same one on all`,
		},
		"two values": {
			all: []string{AnnotationRequired, "zone"}, one: []string{AnnotationRequired, "rack"},
			wantProblem: `gang ml/train has two values of berth.dev/topology-required: "zone" of pod a-0 and "rack" of pod a-1; set the same one on all`,
		},
		"two sizes": {
			all: []string{AnnotationSegment, "rack", AnnotationSegmentSize, "2"}, one: []string{AnnotationSegmentSize, "4"},
			wantProblem: `gang ml/train has two values of berth.dev/topology-segment-size: "2" of pod a-0 and "4" of pod a-1; set the same one on all`,
		},
		"two texts of a size": {all: []string{AnnotationSegment, "rack", AnnotationSegmentSize, "2"}, one: []string{AnnotationSegmentSize, "02"}, want: Topology{SegmentLevel: rack, SegmentSize: 2}},
		"no label key": {
			all:         []string{AnnotationPreferred, "my rack"},
			wantProblem: `annotation berth.dev/topology-preferred of pod a-0 is "my rack", which is neither a level (zone, block, rack, clique, node) nor a label key: set one of these`,
		},
		"a long label key": {
			all: []string{AnnotationRequired, strings.Repeat("a", 100000)},
			wantProblem: `annotation berth.dev/topology-required of pod a-0 is "` + strings.Repeat("a", 64) +
				`"..., which is neither a level (zone, block, rack, clique, node) nor a label key: set one of these`,
		},
		"required narrower than preferred": {
			all: []string{AnnotationRequired, "rack", AnnotationPreferred, "zone"},
			wantProblem: `gang ml/train requires one domain of "topology.kubernetes.io/rack", which is narrower than the "topology.kubernetes.io/zone" that it prefers: ` +
				`require the wider one or prefer the narrower one`,
		},
		"required narrower than segments": {
			all: []string{AnnotationRequired, "rack", AnnotationSegment, "zone", AnnotationSegmentSize, "2"},
			wantProblem: `gang ml/train requires one domain of "topology.kubernetes.io/rack", which is narrower than the "topology.kubernetes.io/zone" of its segments: ` +
				`require the wider one or a narrower one for segments`,
		},
		"segments without a size": {
			all:         []string{AnnotationSegment, "rack"},
			wantProblem: "gang ml/train has berth.dev/topology-segment without berth.dev/topology-segment-size: set it to the number of pods of a segment",
		},
		"a size without segments": {
			all:         []string{AnnotationSegmentSize, "2"},
			wantProblem: "gang ml/train has berth.dev/topology-segment-size without berth.dev/topology-segment: set it to the level of a segment",
		},
		"size zero": {
			all:         []string{AnnotationSegment, "rack", AnnotationSegmentSize, "0"},
			wantProblem: `annotation berth.dev/topology-segment-size of pod a-0 is "0", not a whole number from 1 to 2147483647: set it to the number of pods of a segment`,
		},
		"size a word": {
			all:         []string{kueueSlice, "rack", kueueSize, "1e1"},
			wantProblem: `annotation kueue.x-k8s.io/podset-slice-size of pod a-0 is "1e1", not a whole number from 1 to 2147483647: set it to the number of pods of a segment`,
		},
		"size does not divide": {
			all:         []string{AnnotationSegment, "rack", AnnotationSegmentSize, "3"},
			wantProblem: "gang ml/train has segments of 3, which does not divide its minimum of 4 members: set a size that does",
		},
		"size above the minimum": {
			all:         []string{AnnotationSegment, "rack", AnnotationSegmentSize, "8"},
			wantProblem: "gang ml/train has segments of 8, which does not divide its minimum of 4 members: set a size that does",
		},
		"unconstrained and required": {
			all:         []string{kueueUnconstrained, "true", kueueRequired, rack},
			wantProblem: "gang ml/train has kueue.x-k8s.io/podset-unconstrained-topology and also kueue.x-k8s.io/podset-required-topology: remove one of them",
		},
		"unconstrained and preferred": {
			all:         []string{kueueUnconstrained, "true", kueuePreferred, rack},
			wantProblem: "gang ml/train has kueue.x-k8s.io/podset-unconstrained-topology and also kueue.x-k8s.io/podset-preferred-topology: remove one of them",
		},
		"unconstrained is no truth": {
			all:         []string{kueueUnconstrained, "yes"},
			wantProblem: `annotation kueue.x-k8s.io/podset-unconstrained-topology of pod a-0 is "yes": set it to "true" or "false"`,
		},
		"layers": {
			one: []string{kueueLayers, `[{"topology": "rack", "size": 2}]`},
			wantProblem: "pod a-1 has the annotation kueue.x-k8s.io/podset-slice-required-topology-constraints, which Berth does not support: " +
				"use kueue.x-k8s.io/podset-slice-required-topology and kueue.x-k8s.io/podset-slice-size for one level",
		},
		"the first problem": {
			all:         []string{AnnotationRequired, "?", AnnotationPreferred, "!", AnnotationSegmentSize, "x"},
			wantProblem: `annotation berth.dev/topology-required of pod a-0 is "?", which is neither a level (zone, block, rack, clique, node) nor a label key: set one of these`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pods := many("a", 4, coscheduled, annotations(tc.all...))
			annotations(tc.one...)(pods[1])
			levels := tc.levels
			if levels == nil {
				levels = DefaultLevels()
			}
			got := Build(theirs, pods, &Group{Min: 4, annotations: tc.group}, levels)
			if diff := cmp.Diff(tc.want, got.Topology); diff != "" || got.Problem != tc.wantProblem {
				t.Errorf("problem\n%s, want\n%s\n%s", got.Problem, tc.wantProblem, diff)
			}
			if got.Waiting != "" {
				t.Errorf("waiting %q, want nothing", got.Waiting)
			}
		})
	}
}

// TestParsedAnnotations: each annotation that counts is kept of a PodGroup.
func TestParsedAnnotations(t *testing.T) {
	for _, d := range annotationSets() {
		for _, name := range d.names() {
			if name == "" {
				continue
			}
			g := ParseGroup(SchedulerPlugins, object(fields{"minMember": int64(2)}, fields{"annotations": fields{name: "x", name + "s": "y", "": "z"}}))
			if diff := cmp.Diff(map[string]string{name: "x"}, g.annotations); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// TestDefaultLevels: the alias of each is one name, and the widest comes first.
func TestDefaultLevels(t *testing.T) {
	want := Levels{
		{"zone", zone}, {"block", "topology.kubernetes.io/block"}, {"rack", rack}, {"clique", "nvidia.com/gpu.clique"}, {"node", "kubernetes.io/hostname"},
	}
	if diff := cmp.Diff(want, DefaultLevels()); diff != "" {
		t.Error(diff)
	}
	DefaultLevels()[0].Key = "changed"
	if got := DefaultLevels().resolve("zone"); got != zone {
		t.Errorf("a caller changed the defaults: zone is %s", got)
	}
}
