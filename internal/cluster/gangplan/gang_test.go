package gangplan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type option func(*corev1.Pod)

// pod returns a pod that waits for a node, created at second 100.
func pod(name string, options ...option) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ml", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: second(100), Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	for _, o := range options {
		o(p)
	}
	return p
}

func second(n int64) metav1.Time { return metav1.Time{Time: time.Unix(n, 0).UTC()} }

func label(name, value string) option { return func(p *corev1.Pod) { p.Labels[name] = value } }

func annotation(name, value string) option {
	return func(p *corev1.Pod) { p.Annotations[name] = value }
}

// inTrain labels a pod as a member of the gang train.
func inTrain(minimum string) option {
	return func(p *corev1.Pod) {
		p.Labels[PodGroup] = "train"
		if minimum != "" {
			p.Labels[MinMember] = minimum
		}
	}
}

func coscheduled(p *corev1.Pod) { p.Labels["scheduling.x-k8s.io/pod-group"] = "train" }

func volcano(p *corev1.Pod) { p.Annotations["scheduling.k8s.io/group-name"] = "train" }

func createdAt(n int64) option { return func(p *corev1.Pod) { p.CreationTimestamp = second(n) } }

// boundAt puts a pod on a node, as the API server writes it.
func boundAt(n int64) option {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = "node"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: second(n)}}
	}
}

func phase(phase corev1.PodPhase) option { return func(p *corev1.Pod) { p.Status.Phase = phase } }

func deleted(p *corev1.Pod) { now := second(200); p.DeletionTimestamp = &now }

func owner(apiVersion, kind, uid string) option {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, UID: types.UID(uid), Controller: &yes})
	}
}

func gatedBy(name string) option {
	return func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	}
}

// many returns n members of the gang train, named from prefix-0 on.
func many(prefix string, n int, options ...option) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = pod(fmt.Sprintf("%s-%d", prefix, i), options...)
	}
	return pods
}

func names(pods []*corev1.Pod) string {
	words := make([]string, len(pods))
	for i := range pods {
		words[i] = pods[i].Name
	}
	return strings.Join(words, " ")
}

var (
	ours     = Key{Source: Labels, Namespace: "ml", Name: "train"}
	theirs   = Key{Source: SchedulerPlugins, Namespace: "ml", Name: "train"}
	volcanos = Key{Source: Volcano, Namespace: "ml", Name: "train"}
	podGroup = &Group{UID: "group", Created: second(100), Min: 2}
)

func TestMembers(t *testing.T) {
	job, earlier := owner("batch/v1", "Job", "job"), owner("batch/v1", "Job", "earlier")
	shared := func(p *corev1.Pod) {
		no := false
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", UID: "shared", Controller: &no})
	}
	tests := map[string]struct {
		key      Key
		pods     []*corev1.Pod
		group    *Group
		want     string
		wantDone int32
	}{
		"pods that wait, are bound and run": {
			key: ours, pods: []*corev1.Pod{pod("a-0", inTrain("2")), pod("a-1", inTrain("2"), boundAt(100)), pod("a-2", inTrain("2"), boundAt(100), phase(corev1.PodRunning))},
			want: "a-0 a-1 a-2",
		},
		"pods of others": {
			key: ours, pods: []*corev1.Pod{
				pod("a-0", inTrain("2")), pod("b-0"), pod("c-0", coscheduled), pod("d-0", label(PodGroup, "other")),
				pod("e-0", inTrain("2"), func(p *corev1.Pod) { p.Namespace = "web" }),
			}, want: "a-0",
		},
		"pods that are being deleted or have failed": {
			key: ours, pods: []*corev1.Pod{
				pod("a-0", inTrain("2")), pod("a-1", inTrain("2"), deleted), pod("a-2", inTrain("2"), phase(corev1.PodFailed), job), pod("a-3", inTrain("2"), job),
			}, want: "a-0 a-3",
		},
		"a pod has succeeded and another one of its Job is replaced": {
			key: ours, pods: []*corev1.Pod{pod("a-0", inTrain("2"), job, phase(corev1.PodSucceeded)), pod("a-1", inTrain("2"), job)}, want: "a-1", wantDone: 1,
		},
		"pods of an earlier Job have succeeded": {
			key: ours, pods: []*corev1.Pod{pod("a-0", inTrain("2"), earlier, phase(corev1.PodSucceeded)), pod("a-1", inTrain("2"), job)}, want: "a-1",
		},
		"an owner that is no controller": {
			key: ours, pods: []*corev1.Pod{pod("a-0", inTrain("2"), shared, job, phase(corev1.PodSucceeded)), pod("a-1", inTrain("2"), shared, earlier)}, want: "a-1",
		},
		"a pod without a controller has succeeded": {
			key: ours, pods: []*corev1.Pod{pod("a-0", inTrain("2"), phase(corev1.PodSucceeded)), pod("a-1", inTrain("2"))}, want: "a-1",
		},
		"the PodGroup was created before the pods": {
			key: theirs, group: &Group{Created: second(99), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled), pod("a-1", coscheduled, boundAt(100))}, want: "a-0 a-1",
		},
		"the PodGroup was created after the pods, of which some are bound now": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled), pod("a-1", coscheduled, boundAt(104))}, want: "a-0 a-1",
		},
		"the PodGroup was created again": {
			key: theirs, group: &Group{Created: second(103), Min: 2},
			pods: []*corev1.Pod{pod("a-0", coscheduled, boundAt(102)), pod("a-1", coscheduled, createdAt(104)), pod("a-2", coscheduled, createdAt(104), boundAt(105))},
			want: "a-1 a-2",
		},
		"the PodGroup was created again in the second of the binding": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled, boundAt(103))}, want: "a-0",
		},
		"a pod of the old PodGroup that waits": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled, createdAt(50))}, want: "a-0",
		},
		"a pod is being bound": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled, func(p *corev1.Pod) {
				p.Spec.NodeName = "node"
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: second(101)}}
			})}, want: "a-0",
		},
		"a pod was initialized before it was bound": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled, boundAt(104), func(p *corev1.Pod) {
				ready := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: second(101)}
				p.Status.Conditions = append([]corev1.PodCondition{ready}, p.Status.Conditions...)
			})}, want: "a-0",
		},
		"a pod whose binding has no time": {
			key: theirs, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", coscheduled, boundAt(103), func(p *corev1.Pod) {
				p.Status.Conditions[0].LastTransitionTime = metav1.Time{}
			})}, want: "a-0",
		},
		"a pod of the old PodGroup has succeeded": {
			key: theirs, group: &Group{Created: second(103), Min: 2},
			pods: []*corev1.Pod{pod("a-0", coscheduled, job, boundAt(101), phase(corev1.PodSucceeded)), pod("a-1", coscheduled, job)}, want: "a-1",
		},
		"Berth's gang has no PodGroup": {
			key: ours, group: &Group{Created: second(103), Min: 2}, pods: []*corev1.Pod{pod("a-0", inTrain("2"), boundAt(102))}, want: "a-0",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Build(tc.key, tc.pods, tc.group, DefaultLevels())
			if names(got.Members) != tc.want || got.Done != tc.wantDone {
				t.Errorf("members %q, %d done, want %q, %d", names(got.Members), got.Done, tc.want, tc.wantDone)
			}
			if got.Problem != "" {
				t.Errorf("problem %q, want none", got.Problem)
			}
		})
	}
}

func TestProblemsAndWaiting(t *testing.T) {
	priority := func(n int32) option { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
	never := corev1.PreemptNever
	with := func(options ...option) []*corev1.Pod {
		return append(many("a", 2, inTrain("2")), pod("b-2", append([]option{inTrain("2")}, options...)...))
	}
	noMinimum := func(quoted string) string {
		return "berth.dev/min-member of pod a-0 is " + quoted + ", not a whole number from 1 to 2147483647: set it to the number of pods that have to start together"
	}
	const fix = ": set it to the number of pods that have to start together"
	tests := map[string]struct {
		key         Key
		pods        []*corev1.Pod
		group       *Group
		wantProblem string
		wantWaiting string
		wantMin     int32
		wantGroup   types.UID
		wantAll     int
	}{
		"complete":             {key: ours, pods: many("a", 3, inTrain("2")), wantMin: 2, wantAll: 3},
		"minimum on one alone": {key: ours, pods: append(many("a", 2, inTrain("")), pod("b-2", inTrain("3"))), wantMin: 3, wantAll: 3},
		"minimum as an annotation": {
			key: ours, pods: many("a", 2, inTrain(""), annotation(MinMember, "2")), wantMin: 2, wantAll: 2,
		},
		"the label counts before the annotation": {
			key: ours, pods: many("a", 2, inTrain("2"), annotation(MinMember, "7")), wantMin: 2, wantAll: 2,
		},
		"equal numbers": {key: ours, pods: append(many("a", 1, inTrain("2")), pod("b-1", inTrain("02"))), wantMin: 2, wantAll: 2},
		"too few":       {key: ours, pods: many("a", 3, inTrain("8")), wantWaiting: "3 of 8 members of gang ml/train exist", wantMin: 8, wantAll: 3},
		"largest minimum": {
			key: ours, pods: many("a", 3, inTrain("2147483647")), wantMin: 2147483647, wantAll: 3,
			wantWaiting: "3 of 2147483647 members of gang ml/train exist, and a gang can have only 4096: set a smaller minimum",
		},
		"largest minimum that can be reached": {
			key: ours, pods: many("a", 3, inTrain("4096")), wantMin: 4096, wantAll: 3, wantWaiting: "3 of 4096 members of gang ml/train exist",
		},
		"one has succeeded": {
			key:     ours,
			pods:    append(many("a", 2, inTrain("3"), owner("batch/v1", "Job", "j")), pod("b-2", inTrain("3"), owner("batch/v1", "Job", "j"), phase(corev1.PodSucceeded))),
			wantMin: 3, wantAll: 2,
		},
		"no member": {key: ours, pods: many("a", 3, inTrain("8"), deleted), wantWaiting: "no member of gang ml/train exists"},
		"gated": {
			key: ours, pods: append(many("a", 2, inTrain("4")), many("b", 2, inTrain("4"), gatedBy("kueue.x-k8s.io/topology"))...), wantMin: 4, wantAll: 4,
			wantWaiting: `2 of 4 members of gang ml/train have no scheduling gates; pod b-0 has "kueue.x-k8s.io/topology"`,
		},
		"more than the minimum, some gated": {
			key: ours, pods: append(many("a", 2, inTrain("2")), many("b", 2, inTrain("2"), gatedBy("kueue.x-k8s.io/topology"))...), wantMin: 2, wantAll: 4,
		},
		"no minimum": {
			key: ours, pods: many("a", 2, inTrain("")), wantAll: 2, wantProblem: "gang ml/train has no minimum, because pod a-0 has no label berth.dev/min-member" + fix,
		},
		"minimum zero":           {key: ours, pods: many("a", 1, inTrain("0")), wantAll: 1, wantProblem: noMinimum(`"0"`)},
		"minimum negative":       {key: ours, pods: many("a", 1, inTrain("-3")), wantAll: 1, wantProblem: noMinimum(`"-3"`)},
		"minimum a word":         {key: ours, pods: many("a", 1, inTrain("all")), wantAll: 1, wantProblem: noMinimum(`"all"`)},
		"minimum with sign":      {key: ours, pods: many("a", 1, inTrain("+3")), wantAll: 1, wantProblem: noMinimum(`"+3"`)},
		"minimum 1e9":            {key: ours, pods: many("a", 1, inTrain("1e9")), wantAll: 1, wantProblem: noMinimum(`"1e9"`)},
		"minimum in hexadecimal": {key: ours, pods: many("a", 1, inTrain("0x8")), wantAll: 1, wantProblem: noMinimum(`"0x8"`)},
		"minimum 2^31":           {key: ours, pods: many("a", 1, inTrain("2147483648")), wantAll: 1, wantProblem: noMinimum(`"2147483648"`)},
		"minimum is long": {
			key: ours, pods: many("a", 1, inTrain(""), annotation(MinMember, "\x1b[2J"+strings.Repeat("9", 1000))), wantAll: 1,
			wantProblem: noMinimum(`"\x1b[2J` + strings.Repeat("9", 60) + `"...`),
		},
		"two minima": {
			key: ours, pods: append(many("a", 2, inTrain("8")), pod("b-2", inTrain("4"))), wantAll: 3,
			wantProblem: "gang ml/train has two values of berth.dev/min-member: 8 of pod a-0 and 4 of pod b-2; set the same one on all",
		},
		"two schedulers": {
			key: ours, pods: with(func(p *corev1.Pod) { p.Spec.SchedulerName = "berth-scheduler" }), wantMin: 2, wantAll: 3,
			wantProblem: "gang ml/train has two values of spec.schedulerName: default-scheduler of pod a-0 and berth-scheduler of pod b-2; set the same one on all",
		},
		"the default scheduler by name": {key: ours, pods: with(func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }), wantMin: 2, wantAll: 3},
		"two priorities": {
			key: ours, pods: with(priority(1000)), wantMin: 2, wantAll: 3,
			wantProblem: "gang ml/train has two values of spec.priority: 0 of pod a-0 and 1000 of pod b-2; set the same one on all",
		},
		"priority zero": {key: ours, pods: with(priority(0)), wantMin: 2, wantAll: 3},
		"two preemption policies": {
			key: ours, pods: with(func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }), wantMin: 2, wantAll: 3,
			wantProblem: "gang ml/train has two values of spec.preemptionPolicy: PreemptLowerPriority of pod a-0 and Never of pod b-2; set the same one on all",
		},
		"as many members as a gang can have": {key: ours, pods: many("a", MaxMembers, inTrain("2")), wantMin: 2, wantAll: MaxMembers},
		"too many members": {
			key: ours, pods: many("a", MaxMembers+1, inTrain("2")),
			wantProblem: "gang ml/train has 4097 members, more than the 4096 that a gang can have: split it into several",
		},
		"a name from an annotation that is no label value": {
			key: Key{Source: Labels, Namespace: "ml", Name: "a b"}, pods: []*corev1.Pod{pod("a-0", annotation(PodGroup, "a b"))}, wantAll: 1,
			wantProblem: `gang ml/"a b" has a name that is no label value: set berth.dev/pod-group to at most 63 letters, digits, '-', '_' and '.'`,
		},
		"a name that no PodGroup has": {
			key: Key{Source: Volcano, Namespace: "ml", Name: "Train"}, pods: []*corev1.Pod{pod("a-0", annotation("scheduling.k8s.io/group-name", "Train"))}, wantAll: 1,
			wantProblem: "gang ml/Train has a name that no PodGroup can have: set the name of one",
		},
		"no PodGroup of scheduler-plugins": {
			key: theirs, pods: many("a", 2, coscheduled), wantAll: 2, wantWaiting: "PodGroup ml/train of scheduling.x-k8s.io does not exist",
		},
		"no PodGroup of Volcano": {
			key: volcanos, pods: many("a", 2, volcano), wantAll: 2, wantWaiting: "PodGroup ml/train of scheduling.volcano.sh does not exist",
		},
		"PodGroup is being deleted": {
			key: theirs, pods: many("a", 2, coscheduled), group: &Group{UID: "group", Min: 2, Deleting: true}, wantMin: 2, wantAll: 2, wantGroup: "group",
			wantWaiting: "PodGroup ml/train of scheduling.x-k8s.io is being deleted",
		},
		"no PodGroup and two priorities": {
			key: theirs, pods: append(many("a", 2, coscheduled), pod("b-2", coscheduled, priority(7))), wantAll: 3,
			wantProblem: "gang ml/train has two values of spec.priority: 0 of pod a-0 and 7 of pod b-2; set the same one on all",
		},
		"PodGroup": {
			key: theirs, pods: many("a", 2, coscheduled, inTrain("7"), label(PodGroup, "")), group: &Group{UID: "group", Min: 2},
			wantMin: 2, wantAll: 2, wantGroup: "group",
		},
		"PodGroup with a problem": {
			key: theirs, pods: many("a", 2, coscheduled), group: &Group{UID: "group", Problem: "it is bad"}, wantAll: 2, wantGroup: "group", wantProblem: "it is bad",
		},
		"PodGroup with more than there are": {
			key: volcanos, pods: many("a", 1, volcano), group: podGroup, wantMin: 2, wantAll: 1, wantGroup: "group", wantWaiting: "1 of 2 members of gang ml/train exist",
		},
		"Volcano's Job by its owner": {
			key: volcanos, pods: many("a", 2, volcano, owner("batch.volcano.sh/v1alpha1", "Job", "j")), group: podGroup, wantMin: 2, wantAll: 2, wantGroup: "group",
			wantProblem: "pod a-0 of gang ml/train is one of Volcano's Job, which needs the phase Inqueue that only Volcano's scheduler sets: " +
				"use that scheduler, or a Job of another API",
		},
		"Volcano's Job by an annotation": {
			key: volcanos, pods: many("a", 2, volcano, annotation("volcano.sh/job-name", "train")), group: podGroup, wantMin: 2, wantAll: 2, wantGroup: "group",
			wantProblem: "pod a-0 of gang ml/train is one of Volcano's Job, which needs the phase Inqueue that only Volcano's scheduler sets: " +
				"use that scheduler, or a Job of another API",
		},
		"Berth's labels on Volcano's Job": {key: ours, pods: many("a", 2, inTrain("2"), volcano, owner("batch.volcano.sh/v1alpha1", "Job", "j")), wantMin: 2, wantAll: 2},
		"Kubernetes' Job with Volcano's PodGroup": {
			key: volcanos, pods: many("a", 2, volcano, owner("batch/v1", "Job", "j")), group: podGroup, wantMin: 2, wantAll: 2, wantGroup: "group",
		},
		"another kind of Volcano": {
			key: volcanos, pods: many("a", 2, volcano, owner("batch.volcano.sh/v1alpha1", "Reservation", "j")), group: podGroup, wantMin: 2, wantAll: 2, wantGroup: "group",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := Build(tc.key, tc.pods, tc.group, DefaultLevels())
			if g.Problem != tc.wantProblem {
				t.Errorf("problem\n%s, want\n%s", g.Problem, tc.wantProblem)
			}
			if g.Waiting != tc.wantWaiting {
				t.Errorf("waiting\n%s, want\n%s", g.Waiting, tc.wantWaiting)
			}
			got := Gang{Key: g.Key, Min: g.Min, Group: g.Group}
			want := Gang{Key: tc.key, Min: tc.wantMin, Group: tc.wantGroup}
			if diff := cmp.Diff(want, got); diff != "" || len(g.Members) != tc.wantAll {
				t.Errorf("%d members, want %d\n%s", len(g.Members), tc.wantAll, diff)
			}
		})
	}
}
