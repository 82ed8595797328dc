package gangplan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// anyPod draws a pod that may be a member of one of three gangs, with content that often agrees and often does not.
func anyPod(t *rapid.T, number int) *corev1.Pod {
	maybe := func(value string) string { return rapid.SampledFrom([]string{"", value}).Draw(t, "maybe") }
	p := pod(rapid.SampledFrom([]string{"w-", "x-", "w"}).Draw(t, "prefix")+rapid.StringMatching("[0-9]{1,2}").Draw(t, "ordinal"), createdAt(rapid.Int64Range(100, 103).Draw(t, "created")))
	p.UID = types.UID(rapid.StringMatching("[a-f]{8}").Draw(t, "uid")) + types.UID(rune('a'+number))
	p.Labels[PodGroup] = maybe("train")
	p.Labels["scheduling.x-k8s.io/pod-group"] = maybe("train")
	p.Annotations["scheduling.k8s.io/group-name"] = maybe("train")
	p.Labels[MinMember] = rapid.SampledFrom([]string{"2", "2", "2", "3", "x", ""}).Draw(t, "minimum")
	p.Labels["batch.kubernetes.io/job-completion-index"] = rapid.SampledFrom([]string{"", "0", "1", "10", "x"}).Draw(t, "index")
	p.Annotations[AnnotationRequired] = rapid.SampledFrom([]string{"", "", "rack", "zone"}).Draw(t, "required")
	p.Annotations["kueue.x-k8s.io/podset-slice-size"] = rapid.SampledFrom([]string{"", "", "2", "x"}).Draw(t, "size")
	p.Spec.SchedulerName = rapid.SampledFrom([]string{"", "", "", "berth"}).Draw(t, "scheduler")
	p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")
	owner("batch/v1", "Job", rapid.SampledFrom([]string{"j", "k"}).Draw(t, "job"))(p)
	if rapid.Bool().Draw(t, "gated") {
		gatedBy("example.com/gate")(p)
	}
	if rapid.Bool().Draw(t, "bound") {
		boundAt(rapid.Int64Range(100, 105).Draw(t, "bound at"))(p)
	}
	return p
}

// TestOrderDoesNotMatter: a gang is the same for each order of the list of pods.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			pods = append(pods, anyPod(t, i))
		}
		key := rapid.SampledFrom([]Key{ours, theirs, volcanos}).Draw(t, "key")
		group := rapid.SampledFrom([]*Group{nil, podGroup, {Created: second(103), Min: 2}}).Draw(t, "group")
		want := Build(key, pods, group, DefaultLevels())
		got := Build(key, rapid.Permutation(pods).Draw(t, "order"), group, DefaultLevels())
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		if want.Problem != "" && (want.Waiting != "" || want.Topology != Topology{}) {
			t.Fatalf("a problem and also %q, %+v", want.Waiting, want.Topology)
		}
		for _, p := range want.Members {
			if other, ok := KeyOf(p); !ok || other != key {
				t.Fatalf("member %s is of %v", p.Name, other)
			}
		}
	})
}

// readable fails on a sentence that a terminal or a log could not show.
func readable(t *testing.T, sentence string) {
	t.Helper()
	if len(sentence) > 2000 {
		t.Errorf("%d bytes: %s", len(sentence), sentence[:2000])
	}
	if strings.ContainsFunc(sentence, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("not printable ASCII: %q", sentence)
	}
}

// FuzzBuild: no content of a pod's annotations makes a sentence unreadable or panics, and a gang without a problem has a usable topology.
func FuzzBuild(f *testing.F) {
	f.Add("train", "8", "rack", "clique", "2", "w-0", "")
	f.Add("", "1e9", "\x1b", "é", "0", "W", "true")
	f.Add("a b", "-1", strings.Repeat("a", 400), "/", "2147483648", "", "\u202e")
	f.Fuzz(func(t *testing.T, name, minimum, level, segment, size, podName, other string) {
		p := pod(podName, annotation(PodGroup, name), annotation(MinMember, minimum), annotation(AnnotationRequired, level), annotation(AnnotationSegment, segment),
			annotation(AnnotationSegmentSize, size), annotation("kueue.x-k8s.io/podset-unconstrained-topology", other), annotation("scheduling.k8s.io/group-name", other),
			label("jobset.sigs.k8s.io/job-global-index", size), label("batch.kubernetes.io/job-name", other))
		key, ok := KeyOf(p)
		if ok != (name != "" || other != "") {
			t.Fatalf("gang %v, %v of %q and %q", key, ok, name, other)
		}
		g := Build(key, []*corev1.Pod{p, pod("other", annotation(PodGroup, name), annotation("scheduling.k8s.io/group-name", other))}, &Group{Min: 2}, DefaultLevels())
		readable(t, g.Problem)
		readable(t, g.Waiting)
		readable(t, key.String())
		switch top := g.Topology; {
		case g.Problem != "":
		case ok && g.Min < 1:
			t.Errorf("minimum %d of %q without a problem", g.Min, minimum)
		case top.SegmentLevel == "" != (top.SegmentSize == 0) || top.SegmentSize < 0:
			t.Errorf("segments of %d in %q", top.SegmentSize, top.SegmentLevel)
		}
	})
}

// FuzzParseGroup: no PodGroup panics, and one without a problem has a minimum.
func FuzzParseGroup(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"ml","name":"train"},"spec":{"minMember":8,"scheduleTimeoutSeconds":60}}`), true)
	f.Add([]byte(`{"metadata":{"annotations":{"berth.dev/topology-required":"rack"}},"spec":{"minMember":"8","networkTopology":{"mode":"hard"}}}`), false)
	f.Add([]byte(`{"metadata":[],"spec":[1e99]}`), false)
	f.Fuzz(func(t *testing.T, data []byte, plugins bool) {
		var content map[string]any
		if json.Unmarshal(data, &content) != nil {
			return
		}
		source := Volcano
		if plugins {
			source = SchedulerPlugins
		}
		// The API server decodes whole numbers as int64.
		g := ParseGroup(source, &unstructured.Unstructured{Object: whole(content).(map[string]any)})
		readable(t, g.Problem)
		if (g.Problem == "" && g.Min < 1) || g.Min < 0 {
			t.Errorf("minimum %d", g.Min)
		}
	})
}

func whole(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			v[name] = whole(v[name])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}
