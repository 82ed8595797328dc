package ledger

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestForgottenClaims: a claim that the kubelet does not list keeps its devices while somebody may use them, and not for ever.
func TestForgottenClaims(t *testing.T) {
	claim := Claim{UID: "claim-1", Namespace: "ml", Name: "train", Devices: []ClaimDevice{on("G0"), on("G1")}}
	claim.Pods = train().Pods
	other := ClaimPods{UID: "claim-2"}
	tests := map[string]struct {
		pods    map[string]PodState
		unknown bool // the claim's pods
		// look changes the view of each look, which are 2 s apart.
		look func(second int, view *NodeView)
		// prepare is when the claim is prepared again; 0 for never.
		prepare int
		want    int // the second of the look that releases it; -1 for none
	}{
		"listed":                       {look: func(_ int, v *NodeView) { v.Claims = []ClaimPods{{UID: "claim-1"}} }, want: -1},
		"not listed":                   {want: 30},
		"beside another":               {look: func(_ int, v *NodeView) { v.Claims = []ClaimPods{other} }, want: 30},
		"the record is not known":      {look: func(_ int, v *NodeView) { v.Claims = nil }, want: -1},
		"the containers are not known": {look: func(_ int, v *NodeView) { v.ContainersErr = errors.New("no cgroups") }, want: -1},
		"its pod has a container": {look: func(second int, v *NodeView) {
			if second < 50 {
				v.Containers = []Container{{ID: "c1", PodUID: "P2", Name: "main"}}
			}
		}, want: 50},
		"another pod has a container":   {look: func(_ int, v *NodeView) { v.Containers = []Container{{ID: "c1", PodUID: "P9", Name: "main"}} }, want: 30},
		"its pod is known to be alive":  {pods: map[string]PodState{"P1": PodEnded, "P2": PodLiving}, want: -1},
		"its pods are known to be over": {pods: map[string]PodState{"P1": PodEnded, "P2": PodEnded}, want: 30},
		"its pods are not known":        {unknown: true, want: -1},
		"listed in between": {look: func(second int, v *NodeView) {
			if second == 20 {
				v.Claims = []ClaimPods{{UID: "claim-1"}}
			}
		}, want: 52},
		"prepared again": {prepare: 20, want: 50},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			clock := clocktesting.NewFakePassiveClock(start)
			l := openTest(t, path, func(d *Deps) {
				d.Clock = clock
				d.Pod = func(uid string) PodFacts { return PodFacts{State: test.pods[uid]} }
			})
			claim := claim
			if test.unknown {
				claim.Pods = nil
			}
			if err := l.AcquireClaim(claim); err != nil {
				t.Fatal(err)
			}
			released := -1
			for second := 0; second < 120 && released < 0; second += 2 {
				view := l.NewView()
				view.Claims = []ClaimPods{}
				if test.look != nil {
					test.look(second, &view)
				}
				if test.prepare == second && second > 0 { // After the record was read.
					if err := l.AcquireClaim(claim); err != nil {
						t.Fatal(err)
					}
				}
				l.Reconcile(view)
				switch n := len(l.Holdings()); n {
				case 0:
					released = second
				case 1:
					t.Fatal("one of two devices was released")
				}
				clock.SetTime(clock.Now().Add(2 * time.Second))
			}
			if released != test.want {
				t.Errorf("released after %d s, want %d", released, test.want)
			}
			l.Close()
			again := openTest(t, path, func(d *Deps) { d.Clock = clock })
			if n := len(again.Holdings()); (n == 0) != (test.want >= 0) {
				t.Errorf("the file has %d devices", n)
			}
		})
	}
}
