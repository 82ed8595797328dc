package gangs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// one returns the only member of a gang.
func one(group string, priority int32) *v1.Pod {
	p := pod(0, 1, "")
	p.Name, p.UID, p.Spec.Priority = group+"-0", types.UID(group), &priority
	p.Labels[gangplan.PodGroup] = group
	return p
}

// usable is false for the node n9.
func (w *world) usable(node string) bool { return node != "n9" }

// has is true for pods that have not ended.
func (w *world) has(_ string, pod types.UID) bool { return !w.over[pod] }

// refuse notes that a gang does not fit, and looks for a reservation for it as PostFilter does. Awaited are the pods that have to end, nil
// where the gang does not fit even then.
func (w *world) refuse(t *testing.T, p *v1.Pod, awaited ...*v1.Pod) string {
	t.Helper()
	q, may := w.unfit(p)
	if !may {
		return ""
	}
	return w.take(p, q, way1(p, false, awaited), true, 0)
}

// unfit notes that a gang does not fit, and tells whether a reservation is sought for it.
func (w *world) unfit(p *v1.Pod) (*attempt, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.of(p)
	w.build(g)
	q := &attempt{key: g.key, view: g.view, changes: g.changes, short: true}
	w.answer(g, p, q, nil, "too small")
	return q, w.mayReserve(g, w.clock.Now(), w)
}

// way1 is the place of a member on the node of the first pod that ends.
func way1(p *v1.Pod, preempts bool, ended []*v1.Pod) *way {
	if len(ended) == 0 {
		return nil
	}
	place := gangplanner.Place{Pod: p, Node: ended[0].Spec.NodeName}
	return &way{&gangplanner.Ending{Pods: ended, Plan: gangplanner.Plan{Places: map[types.UID]gangplanner.Place{p.UID: place}}}, preempts}
}

// reserved returns for which gangs something is reserved, and where.
func (w *world) reserved() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, h := range w.holds.byPod {
		if h.reservation != nil {
			list = append(list, fmt.Sprintf("%s on %s", h.gang.Name, h.node))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// TestReservationInLine checks which gang has the reservation, and for how long.
func TestReservationInLine(t *testing.T) {
	on := func(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }
	soon, late := running("soon", 8, deadline(300)), running("late", 8, deadline(1000), on("n1"))
	lost := running("lost", 8, deadline(1000), on("n9"))
	tests := map[string]struct {
		run  func(t *testing.T, w *world, step func(time.Duration))
		want string
	}{
		"at first": {func(t *testing.T, w *world, _ func(time.Duration)) { w.refuse(t, one("a", 0), soon) }, ""},
		"after a minute": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
		}, "a on n0"},
		"the one that was complete first": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, name := range []string{"b", "a", "b"} {
				w.refuse(t, one(name, 0), soon)
				step(time.Minute)
			}
			w.refuse(t, one("a", 0), soon)
		}, "a on n0"},
		"not one behind it": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			w.refuse(t, one("b", 0), late)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			w.refuse(t, one("b", 0), late)
		}, "a on n0"},
		"not one behind it whose search began before": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			w.refuse(t, one("b", 0))
			step(time.Minute)
			q, may := w.unfit(one("b", 0))
			if !may {
				t.Error("no search")
			}
			w.refuse(t, one("a", 0), soon)
			w.take(one("b", 0), q, way1(one("b", 0), false, []*v1.Pod{late}), true, 0)
		}, "a on n0"},
		"one of a higher priority": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			w.refuse(t, one("high", 5), late)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			w.refuse(t, one("high", 5), late)
		}, "high on n1"},
		"one behind a gang that does not fit even when all pods have ended": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0))
			w.refuse(t, one("b", 0), late)
			step(time.Minute)
			w.refuse(t, one("a", 0))
			w.refuse(t, one("b", 0), late)
			w.refuse(t, one("a", 0), soon) // Not asked for a minute.
		}, "b on n1"},
		"a later start than before": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, awaited := range []*v1.Pod{soon, soon, late} {
				w.refuse(t, one("a", 0), awaited)
				step(time.Minute)
			}
		}, "a on n0"},
		"an earlier start than before": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, awaited := range []*v1.Pod{late, late, soon} {
				w.refuse(t, one("a", 0), awaited)
				step(time.Minute)
			}
		}, "a on n0"},
		"a node that is lost": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), lost)
			step(time.Minute)
			w.refuse(t, one("a", 0), lost)
			w.refuse(t, one("a", 0), late)
		}, "a on n1"},
		"the start is over": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			step(300*time.Second + 29*time.Second - 61*time.Second)
			if w.reserved() == "" {
				t.Error("the reservation has ended too early")
			}
			step(2 * time.Second)
		}, ""},
		"the start is not known, for 5 minutes of 30": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), running("x", 8))
			step(time.Minute)
			w.refuse(t, one("a", 0), running("x", 8))
			step(5 * time.Minute)
			if w.reserved() == "" {
				t.Error("the reservation has ended too early")
			}
			step(time.Second)
			if w.reserved() != "" {
				t.Error("the reservation goes on")
			}
			step(25*time.Minute - 2*time.Second)
			w.refuse(t, one("a", 0), running("x", 8))
		}, ""},
		"the start is not known, and once more after 30 minutes": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, wait := range []time.Duration{time.Minute, 5*time.Minute + time.Second, 25*time.Minute - time.Second, 0} {
				w.refuse(t, one("a", 0), running("x", 8))
				step(wait)
			}
		}, "a on n0"},
		"the start is not known, and another gang has the next turn": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, wait := range []time.Duration{time.Minute, 5*time.Minute + time.Second, 25*time.Minute - time.Second, 0} {
				w.refuse(t, one("a", 0), running("x", 8))
				w.refuse(t, one("b", 0), running("x", 8))
				step(wait)
			}
		}, "b on n0"},
		"no turn, and then a start is known": {func(t *testing.T, w *world, step func(time.Duration)) {
			for _, wait := range []time.Duration{time.Minute, 5*time.Minute + time.Second, 10 * time.Minute} {
				w.refuse(t, one("a", 0), running("x", 8))
				step(wait)
			}
			w.refuse(t, one("a", 0), running("y", 8, deadline(7200)))
		}, "a on n0"},
		"a start that is too far ahead is not known": {func(t *testing.T, w *world, step func(time.Duration)) {
			far := running("x", 8, deadline(8*24*60*60))
			w.refuse(t, one("a", 0), far)
			step(time.Minute)
			w.refuse(t, one("a", 0), far)
			step(5*time.Minute + time.Second)
		}, ""},
		"a start that is over is not known": {func(t *testing.T, w *world, step func(time.Duration)) {
			over := running("x", 8, deadline(1))
			for _, wait := range []time.Duration{time.Minute, 5*time.Minute + time.Second, 0} {
				w.refuse(t, one("a", 0), over)
				step(wait)
			}
		}, ""},
		"the gang is planned": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.adopt(w.of(one("a", 0)), map[types.UID]gangplanner.Place{"a": {Pod: one("a", 0), Node: "n0"}})
		}, ""},
		"the gang is deleted": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			w.remove(one("a", 0))
		}, ""},
		"the gang gets a scheduling gate": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.refuse(t, one("a", 0), soon)
			step(time.Minute)
			w.refuse(t, one("a", 0), soon)
			gated := one("a", 0)
			gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
			w.set(gated)
			w.why(gated)
			step(0)
		}, ""},
		"turned off": {func(t *testing.T, w *world, step func(time.Duration)) {
			w.limits.Starve = -1
			w.refuse(t, one("a", 0), soon)
			step(time.Hour)
			w.refuse(t, one("a", 0), soon)
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for _, p := range []*v1.Pod{one("high", 5), one("a", 0)} {
				w.set(p)
			}
			w.clock.Step(time.Second)
			w.set(one("b", 0))
			test.run(t, w, func(d time.Duration) {
				w.clock.Step(d)
				w.look()
			})
			if got := w.reserved(); got != test.want {
				t.Errorf("reserved is %q; want %q", got, test.want)
			}
		})
	}
}

// TestPreemptsWithReservation: a gang with a reservation ends pods instead when it can, also those for which the reservation waits.
func TestPreemptsWithReservation(t *testing.T) {
	w := newWorld()
	p, victim := one("a", 5), running("held", 8)
	w.set(p)
	w.refuse(t, p, victim)
	w.clock.Step(time.Minute)
	if w.refuse(t, p, victim); w.reserved() != "a on n0" || w.heldOn() != "" {
		t.Fatalf("reserved is %q, and %q is held for plans of others", w.reserved(), w.heldOn())
	}
	w.take(p, &attempt{changes: w.of(p).changes}, way1(p, true, []*v1.Pod{victim}), false, 0)
	if list := w.toEvict(); len(list) != 1 || w.reserved() != "a on n0" || w.line.first != nil {
		t.Errorf("%d pods are to end, and reserved is %q", len(list), w.reserved())
	}
}

// TestReservationText checks what the condition of a member says.
func TestReservationText(t *testing.T) {
	tests := map[string]struct {
		pods     []*v1.Pod
		preempts bool
		want     string
	}{
		"a start":  {pods: []*v1.Pod{running("a", 1, deadline(90)), running("b", 1, deadline(60))}, want: "until 2026-11-24T12:02:00Z, and it starts at the latest at 2026-11-24T12:01:30Z"},
		"no start": {pods: []*v1.Pod{running("b", 1), running("a", 1, deadline(60)), running("c", 1)}, want: "have no activeDeadlineSeconds, or of more than a week, or should have ended by them: ml/b and 1 other pod"},
		"pods that end for it": {pods: []*v1.Pod{running("c", 1), running("b", 1), running("a", 1)}, preempts: true,
			want: "when the pods have ended that end for it: ml/a and 2 other pods"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			p := one("a", 0)
			w.set(p)
			w.refuse(t, p)
			got := w.take(p, &attempt{changes: w.of(p).changes}, way1(p, test.preempts, test.pods), true, 0)
			if want := "too small; places on 1 node are reserved for it until 2026-11-24T12:0"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, test.want) {
				t.Errorf("got %q; want %q ... %q", got, want, test.want)
			}
		})
	}
}

// TestTurnWakes: a gang that had no turn is planned again by itself, while nothing happens in the cluster.
func TestTurnWakes(t *testing.T) {
	w := newWorld()
	w.set(one("a", 0))
	for _, wait := range []time.Duration{time.Minute, 5*time.Minute + time.Second, 0} {
		w.refuse(t, one("a", 0), running("x", 8))
		w.clock.Step(wait)
		w.look()
	}
	w.look()
	w.clock.Step(time.Minute - time.Second)
	if tried, _ := w.look(); tried != "" {
		t.Error("it is planned again at once")
	}
	w.clock.Step(time.Second)
	if tried, _ := w.look(); tried != "a-0" {
		t.Errorf("%q is planned again; want a-0", tried)
	}
}

// TestBesides: a gang that does not fit beside what is reserved for another one says so, with the time.
func TestBesides(t *testing.T) {
	soon := running("soon", 8, deadline(300))
	tests := map[string]struct {
		priority int32
		want     string
	}{
		"of the same priority": {0, "too small; places are reserved for gang ml/a until 2026-11-24T12:05:30Z, except for pods of a priority above 0 and pods that end before 2026-11-24T12:05:00Z"},
		"of a higher priority": {1, "too small"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := one("a", 0), one("b", test.priority)
			w.set(a)
			w.set(b)
			w.refuse(t, a, soon)
			w.clock.Step(time.Minute)
			w.refuse(t, a, soon)
			w.mu.Lock()
			defer w.mu.Unlock()
			q := &attempt{key: w.of(b).key, view: w.build(w.of(b)), short: true, Question: gangplanner.Question{Left: map[string]v1.ResourceList{"n0": nil}}}
			if _, got := w.answer(w.of(b), b, q, nil, "too small"); got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// TestPreemptions checks which pods the keeper ends, and when a gang can end others.
func TestPreemptions(t *testing.T) {
	w := newWorld()
	p := one("a", 5)
	w.set(p)
	w.refuse(t, p)
	gone := running("gone", 1, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} })
	may := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.mayPreempt(w.of(p), w.clock.Now(), w)
	}
	take := func(pods ...*v1.Pod) {
		t.Helper()
		if !may() {
			t.Fatal("the gang cannot end pods")
		}
		w.take(p, &attempt{changes: w.of(p).changes}, way1(p, true, pods), false, 0)
	}
	ended := func() string {
		var list []string
		for _, e := range w.toEvict() {
			list = append(list, e.pod.Name)
		}
		return strings.Join(list, " ")
	}
	// Of a gang that has waited for pods only that were being deleted already, other pods can end as soon as these are gone.
	take(gone)
	if w.over["gone"] = true; ended() != "" || !may() {
		t.Fatalf("%q are to end, and the gang can end others: %v", ended(), may())
	}
	w.refuse(t, p)
	take(running("d", 1), running("a", 1), running("c", 1), running("b", 1), gone)
	if ended() != "a b c d" || may() {
		t.Fatalf("%q are to end, and the gang can end more: %v", ended(), may())
	}
	w.evicted("a")
	// The pods have 30 s to end, and the reservation 30 s more.
	w.clock.Step(time.Minute)
	if w.look(); w.reserved() == "" {
		t.Error("the reservation has ended too early")
	}
	w.clock.Step(time.Second)
	if w.look(); w.reserved() != "" || ended() != "" {
		t.Errorf("reserved is %q, and %q are to end", w.reserved(), ended())
	}
	// A gang that has ended pods and was not placed waits longer and longer until it can end others, 30 s after their end at first.
	for _, wait := range []time.Duration{30, 60, 120, 240, 480, 480} {
		w.refuse(t, p)
		if wait > 30 { // The first time was above.
			take(running(fmt.Sprint("pod", wait), 1))
		}
		wait = (wait + 30) * time.Second
		if wait > time.Minute {
			w.clock.Step(61 * time.Second) // The reservation is over.
			w.look()
			w.clock.Step(wait - 61*time.Second - time.Millisecond)
			if may() {
				t.Errorf("the gang can end pods %v after others", wait-time.Millisecond)
			}
		}
		w.clock.Step(time.Millisecond)
	}
	if !may() {
		t.Error("the gang can never end pods again")
	}
	// When all pods have ended, and the gang does not fit yet, it need not wait for the end of the reservation.
	w.mu.Lock()
	w.of(p).preemptions, w.of(p).preemptAfter = 0, time.Time{}
	w.mu.Unlock()
	w.refuse(t, p)
	take(running("early", 1))
	if w.over["early"] = true; may() || w.reserved() != "" {
		t.Errorf("the gang can end others at once, and reserved is %q", w.reserved())
	}
	if w.clock.Step(30 * time.Second); !may() {
		t.Error("the gang cannot end others 30 s after the last pod has ended")
	}
	w.refuse(t, p)
	take(running("lost", 1, func(p *v1.Pod) { p.Spec.NodeName = "n9" }))
	if may(); w.reserved() != "" {
		t.Errorf("reserved is %q on a node that cannot be used", w.reserved())
	}
	never := one("a", 5)
	never.Spec.PreemptionPolicy = new(v1.PreemptNever)
	w.set(never)
	w.clock.Step(time.Hour)
	if may() {
		t.Error("a gang with the preemption policy Never can end pods")
	}
}

// TestReservedUntil checks how long the places are reserved for a gang of which pods end: until they should have ended, and 30 s more.
func TestReservedUntil(t *testing.T) {
	long := func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(3600)) }
	tests := map[string]struct {
		pods []*v1.Pod
		want time.Duration
	}{
		"it is ended now":                         {[]*v1.Pod{running("a", 8, long)}, time.Hour + 30*time.Second},
		"it is being deleted, and ends soon":      {[]*v1.Pod{running("a", 8, long, deletedAt(40*time.Second))}, 70 * time.Second},
		"it is being deleted, and should be over": {[]*v1.Pod{running("a", 8, long, deletedAt(-time.Minute))}, 30 * time.Second},
		"two": {[]*v1.Pod{running("a", 8, long, deletedAt(10*time.Second)), running("b", 8)}, time.Minute},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			p := one("a", 0)
			w.set(p)
			w.refuse(t, p)
			w.mu.Lock()
			g := w.of(p)
			q := &attempt{changes: g.changes}
			w.mu.Unlock()
			w.take(p, q, way1(p, true, test.pods), false, 0)
			if got := g.reservation.until.Sub(start); got != test.want {
				t.Errorf("reserved for %v; want %v", got, test.want)
			}
		})
	}
}
