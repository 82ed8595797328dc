package gangplan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestKeyOf(t *testing.T) {
	inTree := func(p *corev1.Pod) {
		name := "train"
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	}
	tests := map[string]struct {
		options []option
		want    Key
		none    bool
	}{
		"no gang":                           {none: true},
		"minimum alone":                     {options: []option{label(MinMember, "2")}, none: true},
		"Berth's label":                     {options: []option{label(PodGroup, "train")}, want: ours},
		"Berth's annotation":                {options: []option{annotation(PodGroup, "train")}, want: ours},
		"Berth's label and annotation":      {options: []option{label(PodGroup, "train"), annotation(PodGroup, "other")}, want: ours},
		"scheduler-plugins":                 {options: []option{coscheduled}, want: theirs},
		"scheduler-plugins' annotation":     {options: []option{annotation("scheduling.x-k8s.io/pod-group", "train")}, none: true},
		"Volcano":                           {options: []option{volcano}, want: volcanos},
		"Volcano's label":                   {options: []option{label("scheduling.k8s.io/group-name", "train")}, none: true},
		"Volcano's name for controllers":    {options: []option{annotation("scheduling.volcano.sh/group-name", "train")}, none: true},
		"all three":                         {options: []option{label(PodGroup, "train"), label("scheduling.x-k8s.io/pod-group", "b"), annotation("scheduling.k8s.io/group-name", "c")}, want: ours},
		"two":                               {options: []option{coscheduled, annotation("scheduling.k8s.io/group-name", "c")}, want: theirs},
		"an empty name and another one":     {options: []option{label(PodGroup, ""), coscheduled}, want: theirs},
		"a group of a LeaderWorkerSet":      {options: group("3", "4", "4"), want: Key{Namespace: "ml", Name: "train", Group: "serve-3"}},
		"a smaller minimum":                 {options: group("3", "4", "2"), want: Key{Namespace: "ml", Name: "train", Group: "serve-3"}},
		"all groups together":               {options: group("3", "4", "5"), want: ours},
		"groups of no known size":           {options: group("3", "", "4"), want: ours},
		"groups, and a wrong minimum":       {options: group("3", "4", "-1"), want: ours},
		"groups, and no minimum":            {options: group("3", "4", ""), want: ours},
		"a LeaderWorkerSet without a group": {options: group("", "4", "4"), want: ours},
		"a group of another gang":           {options: append(group("3", "4", "4"), label(PodGroup, ""), coscheduled), want: theirs},
		"in-tree":                           {options: []option{inTree}, none: true},
		"in-tree and a label":               {options: []option{inTree, inTrain("2"), coscheduled, volcano}, none: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := KeyOf(pod("a", tc.options...))
			if got != tc.want || ok == tc.none {
				t.Errorf("%+v, %v, want %+v, %v", got, ok, tc.want, !tc.none)
			}
		})
	}
}

// group makes a pod one of a group of a LeaderWorkerSet.
func group(index, size, least string) []option {
	return []option{label(PodGroup, "train"), label(MinMember, least), label("leaderworkerset.sigs.k8s.io/name", "serve"), label(GroupIndex, index),
		annotation("leaderworkerset.sigs.k8s.io/size", size)}
}

// TestKeyOfGroup checks the text of a gang that is a group.
func TestKeyOfGroup(t *testing.T) {
	key := Key{Namespace: "ml", Name: "train", Group: "serve-3"}
	if got := key.String(); got != "ml/train[serve-3]" {
		t.Errorf("got %q", got)
	}
	key.Group = "\x1b[2J"
	if got := key.String(); got != `ml/train["\x1b[2J"]` {
		t.Errorf("got %q", got)
	}
}

func TestKeyString(t *testing.T) {
	tests := map[string]struct {
		name string
		want string
	}{
		"a name":         {"train", "ml/train"},
		"a label value":  {"Train_1", "ml/Train_1"},
		"a long name":    {strings.Repeat("a", 253), "ml/" + strings.Repeat("a", 253)},
		"a longer name":  {strings.Repeat("a", 254), `ml/"` + strings.Repeat("a", 64) + `"...`},
		"control":        {"a\x1b[2Jé\u202e", `ml/"a\x1b[2J\u00e9\u202e"`},
		"an empty name":  {"", `ml/""`},
		"another slash":  {"a/b", `ml/"a/b"`},
		"a quoted quote": {`a"b`, `ml/"a\"b"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (Key{Source: Labels, Namespace: "ml", Name: tc.name}).String(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestResource(t *testing.T) {
	tests := map[string]struct {
		source Source
		want   schema.GroupVersionResource
		none   bool
	}{
		"berth.dev":             {source: Labels, none: true},
		"scheduling.x-k8s.io":   {source: SchedulerPlugins, want: schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"}},
		"scheduling.volcano.sh": {source: Volcano, want: schema.GroupVersionResource{Group: "scheduling.volcano.sh", Version: "v1beta1", Resource: "podgroups"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := tc.source.Resource(); got != tc.want || ok == tc.none || tc.source.String() != name {
				t.Errorf("%s: %v, %v, want %v, %v", tc.source, got, ok, tc.want, !tc.none)
			}
		})
	}
}
