package gangs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// TestWoken checks who is brought back to the queue, at once and at the keeper's looks.
func TestWoken(t *testing.T) {
	gated := func(p *v1.Pod) *v1.Pod {
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}}
		return p
	}
	tests := map[string]struct {
		run  func(t *testing.T, w *world) string
		want string
	}{
		"a member that came to the queue before it was known": {func(_ *testing.T, w *world) string { return names(w.set(pod(3, 3, "")).pods) }, "3"},
		"one that came while the others were placed": {func(t *testing.T, w *world) string {
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.set(pod(3, 3, ""))
			w.train().afterPlan = true // Its refusal.
			w.unreserve(pod(0, 3, ""), "n0", w.train().plan)
			tried, _ := w.look()
			return tried
		}, ""},
		"one that came while the others were placed, after the last was bound": {func(t *testing.T, w *world) string {
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.set(pod(3, 3, ""))
			w.bind(pod(0, 3, ""), "n0")
			w.bind(pod(1, 3, ""), "n0")
			return names(w.bind(pod(2, 3, ""), "n0"))
		}, "3"},
		"the last one is deleted while it is bound": {func(t *testing.T, w *world) string {
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.set(pod(3, 3, ""))
			w.bind(pod(0, 3, ""), "n0")
			w.bind(pod(1, 3, ""), "n0")
			return names(w.remove(pod(2, 3, "")).pods)
		}, "3"},
		"the last one is known to be bound after an answer that was an error": {func(t *testing.T, w *world) string {
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.set(pod(3, 3, ""))
			w.bind(pod(0, 3, ""), "n0")
			w.bind(pod(1, 3, ""), "n0")
			w.unreserve(pod(2, 3, ""), "n0", w.train().plan)
			return names(w.set(pod(2, 3, "n0")).pods)
		}, "3"},
		"the first has a scheduling gate, and leads none": {func(_ *testing.T, w *world) string {
			w.set(gated(pod(0, 3, "")))
			w.set(pod(3, 3, ""))
			w.mu.Lock()
			defer w.mu.Unlock()
			return names(w.leader(w.train()))
		}, "1"},
		"the annotations of a member change": {func(_ *testing.T, w *world) string {
			changed := pod(1, 3, "")
			changed.Annotations = map[string]string{"berth.dev/topology-required": "rack"}
			w.set(changed)
			w.clock.Step(time.Second)
			tried, _ := w.look()
			return tried
		}, "0"},
		"a member with a node leaves the gang": {func(_ *testing.T, w *world) string {
			for i := range 3 {
				w.set(pod(i, 3, "n0"))
			}
			w.set(pod(3, 3, ""))
			w.look()
			other := pod(1, 3, "n0")
			other.Labels = nil
			w.set(other)
			w.clock.Step(time.Second)
			tried, _ := w.look()
			return tried
		}, "3"},
		"a member with a node is gone, which is known late": {func(_ *testing.T, w *world) string {
			for i := range 3 {
				w.set(pod(i, 3, "n0"))
			}
			w.set(pod(3, 3, ""))
			w.look()
			w.gone(pod(1, 3, "n0"), false)
			w.look()
			w.answered(pod(1, 3, "n0"), nil)
			w.clock.Step(time.Second)
			tried, _ := w.look()
			return tried
		}, "3"},
		"the status of a member changes": {func(_ *testing.T, w *world) string {
			changed := pod(1, 3, "")
			changed.Status.Message = "waits"
			w.set(changed)
			w.clock.Step(time.Second)
			tried, _ := w.look()
			return tried
		}, ""},
		"the first is refused by another plugin before it is planned": {func(_ *testing.T, w *world) string {
			w.set(pod(3, 3, ""))
			w.setAbsent(pod(0, 3, ""))
			tried, _ := w.look()
			return tried
		}, "1"},
		"the plan has a member that another plugin refuses": {func(t *testing.T, w *world) string {
			w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.reserve(pod(1, 3, ""), "n0")
			return names(w.setAbsent(pod(0, 3, "")).pods)
		}, "0 1 2"},
		"all are refused by another plugin: none, until that lets one in": {func(_ *testing.T, w *world) string {
			for i := range 3 {
				w.setAbsent(pod(i, 3, ""))
			}
			tried, _ := w.look()
			return tried
		}, ""},
		"a third plan fails: none, for a moment": {func(t *testing.T, w *world) string {
			return w.failPlans(t, 3)
		}, ""},
		"a third plan fails, and a moment later": {func(t *testing.T, w *world) string {
			w.failPlans(t, 3)
			w.clock.Step(w.limits.Retry)
			tried, _ := w.look()
			return tried
		}, "0"},
		"a reservation after a long time, in a plan that goes on": {func(t *testing.T, w *world) string {
			w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			for i := range 2 {
				w.clock.Step(w.limits.Reserve - time.Second)
				w.reserve(pod(i, 3, ""), "n0")
			}
			w.clock.Step(w.limits.Reserve - time.Second)
			tried, _ := w.look()
			return tried
		}, ""},
		"a pod that was refused because of a hold, when it ends": {func(t *testing.T, w *world) string {
			w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			other := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-9", UID: "other"}}
			w.blocked.pods[other.UID] = other
			if tried, _ := w.look(); tried != "" {
				t.Errorf("%s is tried while the hold lasts", tried)
			}
			w.clock.Step(w.limits.Reserve + time.Second)
			tried, _ := w.look()
			return strings.TrimPrefix(tried, "0 1 2")
		}, "9"},
		"a gang that was refused because of a hold, when it ends": {func(t *testing.T, w *world) string {
			w.holds.add(&hold{pod: "x", gang: gangplan.Key{Name: "another"}, node: "n0", until: start.Add(time.Second)})
			w.train().afterHold, w.train().freed = true, w.holds.freed
			if tried, _ := w.look(); tried != "" {
				t.Errorf("%s is tried while the hold lasts", tried)
			}
			w.clock.Step(2 * time.Second)
			tried, _ := w.look()
			return tried
		}, "0"},
		"a gang that was refused because of a reservation, when it ends": {func(_ *testing.T, w *world) string {
			w.set(one("first", 0))
			w.mu.Lock()
			first := w.of(one("first", 0))
			w.grant(first, &reservation{}, &way1(one("first", 0), false, []*v1.Pod{running("x", 8)}).Plan)
			q := w.ask(w.train(), 0, 1, []fwk.NodeInfo{nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, all: amounts{gpus: 8}}})
			w.answer(w.train(), pod(0, 3, ""), &q, nil, "too small")
			w.revoke(first)
			w.mu.Unlock()
			tried, _ := w.look()
			return tried
		}, "0"},
		"members that repeat a refusal of an earlier state: the first one later": {func(t *testing.T, w *world) string {
			w.mu.Lock()
			w.registry.refuse(w.train(), &refusal{version: 1, when: start, reason: "too small"})
			if _, text := w.nodeByStage(w.train(), pod(1, 3, ""), 2); text != "too small" {
				t.Errorf("the answer to the second one is %q", text)
			}
			w.mu.Unlock()
			w.clock.Step(w.limits.Repeat - time.Second)
			if tried, _ := w.look(); tried != "" {
				t.Errorf("%s is tried before", tried)
			}
			w.clock.Step(time.Second)
			tried, _ := w.look()
			return tried
		}, "0"},
		"members that repeat a refusal of this state: none": {func(_ *testing.T, w *world) string {
			w.mu.Lock()
			w.registry.refuse(w.train(), &refusal{version: 1, when: start, reason: "too small"})
			w.nodeByStage(w.train(), pod(1, 3, ""), 1)
			w.mu.Unlock()
			w.clock.Step(w.limits.Repeat)
			tried, _ := w.look()
			return tried
		}, ""},
		"a gang that was refused because of nodes that other plugins refused, when that is forgotten": {func(t *testing.T, w *world) string {
			g := w.train()
			w.registry.refuse(g, &refusal{reason: "no capacity"})
			g.wakeAt(start.Add(w.limits.Mask))
			if tried, _ := w.look(); tried != "" {
				t.Errorf("%s is tried before", tried)
			}
			w.clock.Step(w.limits.Mask)
			tried, _ := w.look()
			return fmt.Sprint(tried, g.refusal == nil)
		}, "0true"},
		"a lower minimum after one that cannot be": {func(t *testing.T, w *world) string {
			for i := range 3 {
				w.set(pod(i, 1_000_000_000, ""))
			}
			w.overdue()
			if list := w.unsaid(); len(list) != 1 || !strings.Contains(list[0].message, "a gang can have only 4096") {
				t.Errorf("an event says %v", list)
			}
			tried := ""
			for i := range 3 {
				tried += names(w.set(pod(i, 3, "")).pods)
			}
			return tried
		}, "0 1 2"},
		"two minimums in a gang that is not complete": {func(*testing.T, *world) string {
			w := newWorld()
			w.set(pod(0, 9, ""))
			w.set(pod(1, 8, ""))
			w.overdue()
			return w.unsaid()[0].message
		}, "gang ml/train has two values of berth.dev/min-member: 9 of pod train-0 and 8 of pod train-1; set the same one on all"},
		"the end of a reservation of the gang itself": {func(_ *testing.T, w *world) string {
			return fmt.Sprint(w.leads(pod(0, 3, ""), pod(1, 3, "n0")))
		}, "false"},
		"the end of a pod of the gang": {func(_ *testing.T, w *world) string {
			w.set(pod(3, 3, "n0"))
			return fmt.Sprint(w.leads(pod(0, 3, ""), pod(3, 3, "n0")))
		}, "true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			if got := test.run(t, w); got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// failPlans has plans fail, and returns who is tried after the last one.
func (w *world) failPlans(t *testing.T, plans int) (tried string) {
	for range plans {
		w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
		w.reserve(pod(0, 3, ""), "n0")
		tried = names(w.replan(pod(1, 3, ""), nil, "n0 was refused").pods)
	}
	return tried
}

// TestPermitAfterPlan: a member whose plan ends between Reserve and its wait does not wait for nothing.
func TestPermitAfterPlan(t *testing.T) {
	tests := map[string]struct {
		run  func(t *testing.T, w *world)
		want string // ok of permit, stray
	}{
		"reserved":       {func(*testing.T, *world) {}, "true false"},
		"the plan ended": {func(_ *testing.T, w *world) { w.remove(pod(2, 3, "")) }, "false true"},
		"there is a new plan": {func(t *testing.T, w *world) {
			w.remove(pod(2, 3, ""))
			w.set(pod(2, 3, ""))
			w.planned(t, "n1", pod(0, 3, ""))
		}, "false true"},
		"something else has bound another": {func(_ *testing.T, w *world) { w.set(pod(1, 3, "n7")) }, "false true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			w.reserve(pod(0, 3, ""), "n0")
			test.run(t, w)
			_, _, ok := w.permit(pod(0, 3, ""))
			if got := fmt.Sprint(ok, w.withoutPlan(pod(0, 3, "")) != nil); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
}

// TestMembers checks who is planned: not those that cannot be scheduled now.
func TestMembers(t *testing.T) {
	view := &gangplan.Gang{}
	for i := range 5 {
		view.Members = append(view.Members, pod(i, 2, ""))
	}
	view.Members[1].Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}}
	q := attempt{view: view, Question: gangplanner.Question{Bound: map[types.UID]string{"uid-3": "n0"}}, absent: map[types.UID]bool{"uid-2": true, "uid-3": true}}
	list, absent := q.members()
	if names(list) != "0 3 4" || names(absent) != "2" {
		t.Errorf("planned %s, absent %s; want 0 3 4 and 2", names(list), names(absent))
	}
}

// TestPauses checks how long a gang waits before it is planned again.
func TestPauses(t *testing.T) {
	tests := map[string]struct {
		failures int
		took     time.Duration
		want     string // after failures, and after a refusal
	}{
		"none":                {0, time.Millisecond, "0s 0s"},
		"the second":          {2, 19 * time.Millisecond, "0s 0s"},
		"the third":           {3, 20 * time.Millisecond, "500ms 200ms"},
		"the fifth":           {5, time.Second, "2s 10s"},
		"very many, too long": {100, time.Minute, "8s 30s"},
	}
	limits := Limits{}.withDefaults()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(limits.retryAfter(test.failures), " ", pauseAfter(test.took)); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
}
