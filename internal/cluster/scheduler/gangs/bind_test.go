package gangs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestBindWaits checks what becomes of a reserved member that waits at Bind.
func TestBindWaits(t *testing.T) {
	stopped := errors.New("the scheduler stops")
	tests := map[string]struct {
		run  func(t *testing.T, w *world, stop func())
		want string // "waits", "bound", or a part of the error
	}{
		"nothing happens":         {func(*testing.T, *world, func()) {}, "waits"},
		"another one is reserved": {func(_ *testing.T, w *world, _ func()) { w.reserve(pod(1, 3, ""), "n0") }, "waits"},
		"all are reserved": {func(_ *testing.T, w *world, _ func()) {
			for i := 1; i < 3; i++ {
				w.reserve(pod(i, 3, ""), "n0")
			}
			w.permit(pod(2, 3, ""))
		}, "bound"},
		"all are reserved, and all others are bound": {func(_ *testing.T, w *world, _ func()) {
			for i := 1; i < 3; i++ {
				w.reserve(pod(i, 3, ""), "n0")
			}
			w.permit(pod(2, 3, ""))
			for i := 1; i < 3; i++ {
				w.bind(pod(i, 3, ""), "n0")
			}
		}, "bound"},
		"another one is refused": {func(_ *testing.T, w *world, _ func()) { w.setAbsent(pod(1, 3, "")) }, errGivenUp.Error()},
		"another one is deleted": {func(_ *testing.T, w *world, _ func()) { w.remove(pod(1, 3, "")) }, errGivenUp.Error()},
		"a gang of a higher priority has its place": {func(t *testing.T, w *world, _ func()) {
			if _, waits := w.preempted(pod(0, 3, "")); !waits {
				t.Error("the member does not wait")
			}
		}, errGivenUp.Error()},
		"the scheduler stops": {func(_ *testing.T, _ *world, stop func()) { stop() }, stopped.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				for i := range 3 {
					w.set(pod(i, 3, ""))
				}
				w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
				w.reserve(pod(0, 3, ""), "n0")
				ctx, cancel := context.WithCancelCause(t.Context())
				got := "waits"
				go func() {
					if err := w.await(ctx, pod(0, 3, "")); err != nil {
						got = err.Error()
						return
					}
					got = "bound"
				}()
				synctest.Wait()
				test.run(t, w, func() { cancel(stopped) })
				synctest.Wait()
				if got, _, _ = strings.Cut(got, " (refusal"); got != test.want && got != "wait for the other members of the gang: "+test.want {
					t.Errorf("got %q; want %q", got, test.want)
				}
				cancel(nil)
				synctest.Wait()
			})
		})
	}
}

// TestPermitOrBind: members wait at Permit until a call of Bind has shown that they can wait there, and always if something is written for
// them before they are bound.
func TestPermitOrBind(t *testing.T) {
	w := newWorld()
	claims := func(p *v1.Pod) *v1.Pod {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu"}}
		return p
	}
	volume := func(p *v1.Pod) *v1.Pod {
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
		return p
	}
	for i := range 3 {
		w.set(pod(i, 3, ""))
	}
	p := &Plugin{gangs: w.registry}
	w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
	w.reserve(pod(0, 3, ""), "n0")
	code := func(pod *v1.Pod) fwk.Code {
		status, _ := p.Permit(t.Context(), nil, pod, "n0")
		return status.Code()
	}
	if got := code(pod(0, 3, "")); got != fwk.Wait {
		t.Errorf("before Bind was called, Permit says %v", got)
	}
	if got := p.Bind(t.Context(), nil, &v1.Pod{}, "n0").Code(); got != fwk.Skip {
		t.Errorf("Bind of a pod of no gang says %v", got)
	}
	if got := code(pod(0, 3, "")); got != fwk.Success {
		t.Errorf("after Bind was called, Permit says %v", got)
	}
	for _, member := range []*v1.Pod{claims(pod(0, 3, "")), volume(pod(0, 3, ""))} {
		if got := code(member); got != fwk.Wait {
			t.Errorf("of a member with claims or volumes, Permit says %v", got)
		}
	}
	if got := p.Bind(t.Context(), nil, pod(1, 3, ""), "n0"); got.Code() != fwk.Error {
		t.Errorf("Bind of a member that is not reserved says %v", got)
	}
}

// TestUnreserveOfAnOldPlan: a member whose reservation ends with its plan does not end the next plan of the gang.
func TestUnreserveOfAnOldPlan(t *testing.T) {
	w := newWorld()
	members := []*v1.Pod{pod(0, 2, ""), pod(1, 2, "")}
	for _, p := range members {
		w.set(p)
	}
	w.planned(t, "n0", members...)
	old := w.train().plan
	w.reserve(members[0], "n0")
	w.setAbsent(members[1]) // It gives up the plan.
	w.planned(t, "n0", members...)
	if w.unreserve(members[0], "n0", old); w.train().plan == nil {
		t.Error("the new plan was given up")
	}
	if w.unreserve(members[0], "n0", w.train().plan); w.train().plan != nil {
		t.Error("the plan goes on without a member")
	}
}

// TestRefusalsDiffer: two refusals of a member never have the same reason, so that the scheduler writes each to the pod's condition.
func TestRefusalsDiffer(t *testing.T) {
	w := newWorld()
	for i := range 3 {
		w.set(pod(i, 3, ""))
	}
	seen := map[string]int{}
	for range 2 {
		w.planned(t, "n0", pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
		w.reserve(pod(0, 3, ""), "n0")
		out := w.setAbsent(pod(1, 3, ""))
		if len(out.waiting) != 1 {
			t.Fatalf("%d members wait, want 1", len(out.waiting))
		}
		seen[out.reason]++
		seen[w.await(t.Context(), pod(0, 3, "")).Error()]++
		seen[w.withoutPlan(pod(0, 3, "")).Error()]++
	}
	if len(seen) != 6 {
		t.Errorf("the reasons of 6 refusals are %v", seen)
	}
}
