package gangs

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

func (w *world) train() *gang { return w.gangs[gangplan.Key{Namespace: "ml", Name: "train"}] }

// heldOn returns the nodes on which something is held.
func (w *world) heldOn() string {
	var list []string
	for _, h := range w.holds.others(&seeker{}) {
		list = append(list, h.node)
	}
	return strings.Join(list, " ")
}

// tried returns the members that the keeper brings back to the queue, and deleted those that it deletes.
func (w *world) look() (tried, deleted string) {
	again, lost := w.overdue()
	for _, out := range again {
		tried += names(out.pods)
	}
	for _, l := range lost {
		deleted += names(l.pods)
	}
	return tried, deleted
}

// permitted reserves all members on a node, and permits them.
func (w *world) permitted(t *testing.T, pods ...*v1.Pod) {
	t.Helper()
	w.planned(t, "n0", pods...)
	for _, p := range pods {
		if _, ok := w.reserve(p, "n0"); !ok {
			t.Fatalf("%s is not reserved", p.Name)
		}
		w.permit(p)
	}
}

// TestKeeperDeletes checks which members the keeper deletes, where it has not seen the beginning of the gang.
func TestKeeperDeletes(t *testing.T) {
	boundAt := func(p *v1.Pod, at time.Time) *v1.Pod {
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
		return p
	}
	tests := map[string]struct {
		run  func(t *testing.T, w *world)
		want string
	}{
		"bound in part": {func(_ *testing.T, w *world) { w.set(pod(0, 3, "n0")); w.set(pod(1, 3, "")); w.set(pod(2, 3, "")) }, "0"},
		"of another scheduler": {func(_ *testing.T, w *world) {
			for i, node := range []string{"n0", "", ""} {
				p := pod(i, 3, node)
				p.Spec.SchedulerName = "scheduler-plugins-scheduler"
				w.set(p)
			}
		}, ""},
		"a member was lost before the scheduler started, and one that waits for capacity is older": {func(_ *testing.T, w *world) {
			w.set(pod(0, 3, "n0"))
			w.set(pod(3, 3, "")) // Above the least number.
			young := pod(1, 3, "")
			young.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
			w.set(young)
		}, ""},
		"it was bound long before the scheduler started": {func(_ *testing.T, w *world) {
			w.set(boundAt(pod(0, 2, "n0"), start.Add(-time.Hour)))
			old := pod(1, 2, "")
			old.CreationTimestamp = metav1.NewTime(start.Add(-2 * time.Hour))
			w.set(old)
		}, ""},
		"it is being bound, slowly": {func(t *testing.T, w *world) {
			for i := range 4 {
				w.set(pod(i, 4, ""))
			}
			for i := range 3 {
				w.set(pod(i, 4, "n0"))
				if _, deleted := w.look(); deleted != "" {
					t.Errorf("%s are deleted although %d was just bound", deleted, i)
				}
				if i < 2 {
					w.clock.Step(15 * time.Second)
				}
			}
		}, "0 1 2"}, // 21 s after the last one, not before; see below.
		"the binding of members takes 10 minutes": {func(t *testing.T, w *world) { w.bindSlowly(t, 10*time.Minute) }, ""},
		"the binding of members takes long, then it fails": {func(t *testing.T, w *world) {
			w.bindSlowly(t, 10*time.Minute)
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.unreserve(pod(2, 3, ""), "n0", w.train().plan)
		}, "0"},
		"the binding of a member fails, and that of another one takes long": {func(t *testing.T, w *world) {
			w.bindSlowly(t, 10*time.Minute)
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
		}, "0"},
		"the binding of a member fails, and its next one takes long": {func(t *testing.T, w *world) {
			w.bindSlowly(t, 10*time.Minute)
			w.bind(pod(2, 3, ""), "n0")
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.permitted(t, pod(1, 3, ""))
		}, "0"},
		"the minimum is not readable": {func(_ *testing.T, w *world) {
			w.set(pod(0, 3, "n0"))
			for i := 1; i < 3; i++ {
				p := pod(i, 3, "")
				p.Labels[gangplan.MinMember] = "three"
				w.set(p)
			}
		}, ""},
		"it was whole, all were replaced, and the second time it is bound in part": {func(t *testing.T, w *world) {
			w.set(pod(0, 2, "n0"))
			w.set(pod(1, 2, "n0"))
			w.overdue()
			w.set(pod(2, 2, ""))
			w.set(pod(3, 2, ""))
			w.remove(pod(0, 2, "n0"))
			w.remove(pod(1, 2, "n0"))
			w.permitted(t, pod(2, 2, ""), pod(3, 2, ""))
			w.bind(pod(2, 2, ""), "n0")
			w.set(pod(2, 2, "n0"))
			w.unreserve(pod(3, 2, ""), "n0", w.train().plan)
		}, "2"},
		"it was bound in part from the beginning, and a member was deleted": {func(t *testing.T, w *world) {
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.bind(pod(0, 3, ""), "n0")
			w.set(pod(0, 3, "n0"))
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.remove(pod(2, 3, ""))
		}, "0"},
		"its PodGroup is not known yet": {func(_ *testing.T, w *world) {
			for i, node := range []string{"n0", ""} {
				p := pod(i, 2, node)
				p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "train"}
				w.set(p)
			}
			w.overdue()
			w.clock.Step(time.Minute)
			w.overdue()
			key := gangplan.Key{Source: gangplan.SchedulerPlugins, Namespace: "ml", Name: "train"}
			w.setGroup(key, &gangplan.Group{UID: "g", Created: metav1.NewTime(start), Min: 2})
		}, "0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.run(t, w)
			if _, deleted := w.look(); deleted != "" {
				t.Errorf("%s are deleted at once", deleted)
			}
			w.clock.Step(w.limits.Release - time.Second)
			if _, deleted := w.look(); deleted != "" {
				t.Errorf("%s are deleted before the limit", deleted)
			}
			w.clock.Step(2 * time.Second)
			if _, deleted := w.look(); deleted != test.want {
				t.Errorf("the members %q are deleted; want %q", deleted, test.want)
			}
		})
	}
}

// bindSlowly binds one of three members, and the keeper looks while the others are being bound.
func (w *world) bindSlowly(t *testing.T, long time.Duration) {
	t.Helper()
	for i := range 3 {
		w.set(pod(i, 3, ""))
	}
	w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
	w.bind(pod(0, 3, ""), "n0")
	w.set(pod(0, 3, "n0"))
	for range long / w.limits.Look {
		w.clock.Step(w.limits.Look)
		if _, deleted := w.look(); deleted != "" {
			t.Fatalf("%s are deleted while the others are being bound", deleted)
		}
	}
}

// TestPlaces checks what is held after what can go wrong with a binding, or a lost member.
func TestPlaces(t *testing.T) {
	tests := map[string]struct {
		run  func(t *testing.T, w *world)
		want string
	}{
		"a binding fails": {func(_ *testing.T, w *world) { w.unreserve(pod(1, 3, ""), "n0", w.train().plan) }, "n0"},
		"it was bound, and the answer is an error": {func(_ *testing.T, w *world) {
			w.set(pod(1, 3, "n0"))
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
		}, ""},
		"the answer is an error, then it is known to be bound": {func(_ *testing.T, w *world) {
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.set(pod(1, 3, "n0"))
		}, ""},
		"a binding fails for longer than a place is held": {func(t *testing.T, w *world) {
			w.bind(pod(2, 3, ""), "n0")
			for range 5 {
				w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
				w.clock.Step(8 * time.Second)
				w.overdue()
				w.permitted(t, pod(1, 3, ""))
			}
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
		}, ""},
		"the member is deleted": {func(_ *testing.T, w *world) {
			w.unreserve(pod(1, 3, ""), "n0", w.train().plan)
			w.remove(pod(1, 3, ""))
		}, ""},
		"a member loses its label": {func(_ *testing.T, w *world) {
			w.bindAll()
			other := pod(1, 3, "n0")
			other.Labels = nil
			w.set(other)
		}, ""},
		"a member of a whole gang is deleted": {func(_ *testing.T, w *world) { w.bindAll(); w.remove(pod(1, 3, "n0")) }, "n0"},
		"a member of another scheduler's gang is deleted": {func(_ *testing.T, w *world) {
			for i := range 3 {
				p := pod(i, 3, "n0")
				p.Spec.SchedulerName = "another"
				w.set(p)
			}
			w.overdue()
			p := pod(1, 3, "n0")
			p.Spec.SchedulerName = "another"
			w.remove(p)
		}, ""},
		"the one in its place is planned elsewhere":  {func(t *testing.T, w *world) { w.lose(t) }, "n5"},
		"and that plan is given up":                  {func(t *testing.T, w *world) { w.lose(t); w.unreserve(pod(3, 3, ""), "n5", w.train().plan) }, "n0"},
		"all members are deleted one after another":  {func(_ *testing.T, w *world) { w.bindAll(); w.removeAll() }, ""},
		"all are deleted, and others take the place": {func(_ *testing.T, w *world) { w.bindAll(); w.set(pod(7, 3, "")); w.removeAll(); w.overdue() }, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.bind(pod(0, 3, ""), "n0")
			test.run(t, w)
			if got := w.heldOn(); got != test.want {
				t.Errorf("held on %q; want %q", got, test.want)
			}
		})
	}
}

func (w *world) bindAll() {
	for i := range 3 {
		w.bind(pod(i, 3, ""), "n0")
		w.set(pod(i, 3, "n0"))
	}
	w.overdue()
}

func (w *world) removeAll() {
	for i := range 3 {
		w.remove(pod(i, 3, "n0"))
	}
}

// lose loses a member, and plans the one that takes its place elsewhere.
func (w *world) lose(t *testing.T) {
	w.bindAll()
	w.remove(pod(1, 3, "n0"))
	w.set(pod(3, 3, ""))
	w.planned(t, "n5", pod(3, 3, ""))
}

// TestProblem: what is wrong with a gang is said once, and again when it is something else.
func TestProblem(t *testing.T) {
	w := newWorld()
	says := func() string {
		w.overdue()
		text := ""
		for _, said := range w.unsaid() {
			text += said.reason + ": " + said.message
		}
		return text
	}
	w.set(pod(0, -1, ""))
	const want = `GangRefused: berth.dev/min-member of pod train-0 is "-1", not a whole number from 1 to 2147483647: set it to the number of pods that have to start together`
	if got := says(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w.set(pod(0, -1, ""))
	if got := says(); got != "" {
		t.Errorf("said again: %s", got)
	}
	w.set(pod(0, -2, ""))
	if got := says(); !strings.Contains(got, `"-2"`) {
		t.Errorf("got %q", got)
	}
	w.set(pod(0, 1, ""))
	if got := says(); got != "" {
		t.Errorf("nothing is wrong, and it says %s", got)
	}
	w.set(pod(0, -2, ""))
	if got := says(); !strings.Contains(got, `"-2"`) {
		t.Errorf("wrong again, and it says %q", got)
	}
}

// TestIncomplete: a gang that waits for members says so once.
func TestIncomplete(t *testing.T) {
	w := newWorld()
	w.set(pod(0, 3, ""))
	w.set(pod(1, 3, ""))
	w.clock.Step(w.limits.Say - time.Second)
	if list := w.unsaid(); len(list) > 0 {
		t.Errorf("it says %q before its time", list[0].message)
	}
	w.clock.Step(2 * time.Second)
	if list := w.unsaid(); len(list) != 1 || list[0].message != "2 of 3 members of gang ml/train exist" || names(list[0].pods) != "0" {
		t.Errorf("got %v", list)
	}
	if list := w.unsaid(); len(list) > 0 {
		t.Error("it says so twice")
	}
}

// TestGroupEdited: a PodGroup that needs fewer members than before, while its gang is bound in part, is complete.
func TestGroupEdited(t *testing.T) {
	w := newWorld()
	key := gangplan.Key{Source: gangplan.SchedulerPlugins, Namespace: "ml", Name: "train"}
	group := func(least int32) *gangplan.Group {
		return &gangplan.Group{UID: "g", Created: metav1.NewTime(start.Add(-time.Minute)), Min: least}
	}
	w.setGroup(key, group(3))
	for i, node := range []string{"n0", "n0", ""} {
		p := pod(i, 3, node)
		p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "train"}
		w.set(p)
	}
	w.overdue()
	if pods := w.setGroup(key, group(2)); names(pods) != "2" {
		t.Errorf("%q are tried; want 2", names(pods))
	}
	w.overdue()
	w.clock.Step(time.Minute)
	if _, deleted := w.look(); deleted != "" || w.gangs[key].presence != presenceWhole {
		t.Errorf("%q are deleted", deleted)
	}
}

// TestDone: a pod that takes the place of the last one of a Job which failed is placed, although the others have succeeded before it came.
func TestDone(t *testing.T) {
	w := newWorld()
	job := func(p *v1.Pod) *v1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{UID: "job", Controller: new(true)}}
		return p
	}
	for i := range 2 {
		w.set(job(pod(i, 2, "n0")))
	}
	ended := job(pod(0, 2, "n0"))
	ended.Status.Phase = v1.PodSucceeded
	w.remove(ended)
	failed := job(pod(1, 2, "n0"))
	failed.Status.Phase = v1.PodFailed
	w.remove(failed)
	w.overdue()
	w.clock.Step(time.Minute)
	w.overdue()
	if out := w.set(job(pod(2, 2, ""))); names(out.pods) == "" {
		t.Errorf("the pod waits: %s", w.why(pod(2, 2, "")))
	}
	w.remove(job(pod(2, 2, "")))
	w.clock.Step(w.limits.Lost + time.Second)
	w.overdue()
	if len(w.gangs) > 0 || len(w.ofPod) > 0 {
		t.Errorf("%d gangs and %d pods are kept", len(w.gangs), len(w.ofPod))
	}
}
