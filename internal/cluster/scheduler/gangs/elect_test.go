package gangs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// TestStandby: a scheduler that has run no scheduling cycle deletes nothing, but says what is wrong: it can be a leader without a pod to
// schedule. After its first cycle, gangs have their full time.
func TestStandby(t *testing.T) {
	w := newStandby()
	w.set(pod(0, 3, "n0"))
	w.set(pod(1, 3, "n1"))
	w.set(pod(2, 3, ""))
	w.set(one("wrong", 0))
	wrong := one("wrong", 0)
	wrong.Labels[gangplan.MinMember] = "none"
	w.set(wrong)
	saw := func(what, want string) {
		t.Helper()
		_, deleted := w.look()
		if got := fmt.Sprintf("deleted [%s], %d events", deleted, len(w.unsaid())); got != want {
			t.Errorf("%s: %s; want %s", what, got, want)
		}
	}
	saw("at first", "deleted [], 1 events")
	w.clock.Step(time.Hour)
	saw("an hour later", "deleted [], 0 events")
	w.elect()
	saw("after the first cycle", "deleted [], 0 events")
	w.clock.Step(w.limits.Release - time.Second)
	w.elect()
	saw("before the limit", "deleted [], 0 events")
	w.clock.Step(time.Second)
	saw("after the limit", "deleted [0 1], 0 events")
}

// TestElected: the scheduling cycle of any pod says that this process is the leader.
func TestElected(t *testing.T) {
	w := newStandby()
	p := &Plugin{gangs: w.registry, synced: func() bool { return true }}
	if p.PreEnqueue(t.Context(), running("a", 1)); w.elected.Load() {
		t.Error("PreEnqueue says so, too")
	}
	if p.PreFilter(t.Context(), nil, running("a", 1), nil); !w.elected.Load() {
		t.Error("PreFilter does not")
	}
	w.elected.Store(false)
	if p.PostFilter(t.Context(), nil, running("a", 1), nil); !w.elected.Load() {
		t.Error("PostFilter does not")
	}
}

// TestSince checks the place of a gang in the queue: when the last one of its least number of members was created.
func TestSince(t *testing.T) {
	created := func(index int, after time.Duration) *v1.Pod {
		p := pod(index, 2, "")
		p.CreationTimestamp = metav1.NewTime(start.Add(after))
		return p
	}
	tests := map[string]struct {
		pods []*v1.Pod // in the order in which they are seen
		want time.Duration
	}{
		"the least number":     {[]*v1.Pod{created(0, -time.Hour), created(1, -time.Minute)}, -time.Minute},
		"in another order":     {[]*v1.Pod{created(1, -time.Minute), created(0, -time.Hour)}, -time.Minute},
		"a clock that is late": {[]*v1.Pod{created(0, -time.Hour), created(1, time.Minute)}, 0},
		"a later one":          {[]*v1.Pod{created(0, -time.Hour), created(1, -time.Minute), created(2, -time.Second)}, -time.Minute},
		"one was replaced":     {[]*v1.Pod{created(0, -time.Hour), created(3, -time.Second)}, -time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for _, p := range test.pods {
				w.set(p)
			}
			if got := w.train().since.Sub(start); got != test.want {
				t.Errorf("since %v; want %v", got, test.want)
			}
		})
	}
}

// TestRefusals: each refusal has a reason of its own, in all processes.
func TestRefusals(t *testing.T) {
	first, next := newWorld(), newWorld()
	next.started = start.Add(time.Millisecond)
	got := []string{first.numbered(errGivenUp).Error(), first.numbered(errGivenUp).Error(), next.numbered(errGivenUp).Error(), next.preemptedText()}
	want := []string{
		"the plan of the gang was given up (refusal 1 since 2026-11-24T12:00:00.000Z)",
		"the plan of the gang was given up (refusal 2 since 2026-11-24T12:00:00.000Z)",
		"the plan of the gang was given up (refusal 1 since 2026-11-24T12:00:00.001Z)",
		"preempted (refusal 2 since 2026-11-24T12:00:00.001Z)",
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
	if !errors.Is(first.numbered(errGivenUp), errGivenUp) {
		t.Error("the error is another one")
	}
}
