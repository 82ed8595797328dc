package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// train is a claim that two pods use.
func train(devices ...ClaimDevice) Claim {
	return Claim{
		UID: "claim-1", Namespace: "ml", Name: "train", Devices: devices,
		Pods: []gpu.Pod{{UID: "P2", Namespace: "ml", Name: "train-1"}, {UID: "P1", Namespace: "ml", Name: "train-0"}},
	}
}

// on is a device of a claim, for a request if there is one.
func on(text string, requests ...string) ClaimDevice {
	return ClaimDevice{Key: anyKey(text), Requests: requests}
}

// anyKey parses also keys by placement: G0/4:2.
func anyKey(text string) gpu.DeviceKey {
	parsed := key(text)
	start, size, placed := strings.Cut(string(parsed.MIG), ":")
	if !placed {
		return parsed
	}
	number := func(digits string) int { return int(digits[0] - '0') }
	return gpu.DeviceKey{GPU: parsed.GPU, Placement: gpu.Placement{Start: number(start), Size: number(size)}, Share: parsed.Share}
}

func conflicts(l *Ledger, view NodeView) []string {
	var all []string
	for _, c := range l.Reconcile(view).Conflicts {
		all = append(all, c.Key.String()+": "+strings.Join(c.Pods, ", "))
	}
	return all
}

// TestClaimsOwnPodsAreNoConflict compares a claim with running containers: those of its pods are its own, in whatever way
// they were found, and all others are reported.
func TestClaimsOwnPodsAreNoConflict(t *testing.T) {
	requesting := func(string) PodFacts {
		return PodFacts{State: PodLiving, Containers: []PodContainer{{Name: "main", Devices: map[string]int{"nvidia.com/gpu": 1}}}}
	}
	held := func(keys ...string) []gpu.DeviceKey {
		var list []gpu.DeviceKey
		for _, text := range keys {
			list = append(list, key(text))
		}
		return list
	}
	tests := map[string]struct {
		devices    []ClaimDevice
		containers []Container
		assigned   []Assignment
		want       []string
		unmarked   []string
	}{
		"its own pod":             {devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Keys: held("G0")}}},
		"both of its pods":        {devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Keys: held("G0")}, {ID: "c2", PodUID: "P2", Name: "main", Keys: held("G0")}}},
		"its pod, by device node": {devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Open: held("G0")}}},
		"its replica, by device node": {
			devices: []ClaimDevice{on("G0#2")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Open: held("G0")}},
		},
		"its MIG device, by device node": {
			devices: []ClaimDevice{on("G0/M1")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Open: held("G0/M1")}},
		},
		"its pod has a device node that is not the claim's": {
			devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Open: held("G0", "G1")}},
			unmarked: []string{"G1"},
		},
		"the kubelet lists its own pod": {
			devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Keys: held("G0")}},
			assigned: []Assignment{{PodUID: "P1", Container: "main", Resource: "nvidia.com/gpu", Keys: held("G0")}},
		},
		"a foreign container": {
			devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c9", PodUID: "P9", Name: "main", Keys: held("G0")}},
			want: []string{"G0: claim-1, P9"},
		},
		"a foreign container, by device node": {
			devices: []ClaimDevice{on("G0")}, containers: []Container{{ID: "c9", PodUID: "P9", Name: "main", Open: held("G0")}},
			want: []string{"G0: claim-1, P9"}, unmarked: []string{"G0"},
		},
		"a foreign container beside its own": {
			devices:    []ClaimDevice{on("G0")},
			containers: []Container{{ID: "c1", PodUID: "P1", Name: "main", Keys: held("G0")}, {ID: "c9", PodUID: "P9", Name: "main", Keys: held("G0")}},
			want:       []string{"G0: claim-1, P9"},
		},
		"a foreign container on the whole GPU": {
			devices: []ClaimDevice{on("G0/M1")}, containers: []Container{{ID: "c9", PodUID: "P9", Name: "main", Keys: held("G0")}},
			want: []string{"G0/M1: P9, claim-1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) { d.Pod = requesting })
			if err := l.AcquireClaim(train(test.devices...)); err != nil {
				t.Fatal(err)
			}
			view := NodeView{Containers: test.containers, Assignments: test.assigned}
			var unmarked []string
			for _, c := range l.Reconcile(view).Unmarked {
				for _, open := range c.Open {
					unmarked = append(unmarked, open.String())
				}
			}
			if diff := cmp.Diff(test.unmarked, unmarked); diff != "" {
				t.Errorf("unmarked (-want +got):\n%s", diff)
			}
			for range 3 { // It is compared every two seconds.
				if diff := cmp.Diff(test.want, conflicts(l, view)); diff != "" {
					t.Errorf("conflicts (-want +got):\n%s", diff)
				}
			}
			for _, d := range test.devices {
				if h := l.records[d.Key]; h == nil || h.Holder.Kind != gpu.HolderClaim {
					t.Errorf("%s is held by %v, want by the claim", d.Key, h)
				}
			}
		})
	}
}

// TestPodsOfAClaimChange: what is known later of a claim that is held is in force, on all its devices, and in the file.
func TestPodsOfAClaimChange(t *testing.T) {
	second := []gpu.Pod{{UID: "P3", Namespace: "ml", Name: "later"}, {UID: "P1", Namespace: "ml", Name: "train-0"}}
	base := Claim{UID: "claim-1", Devices: []ClaimDevice{on("G0"), on("G1")}}
	tests := map[string]struct {
		change func(l *Ledger) error
		want   []string
	}{
		"acquired again with names and pods": {
			change: func(l *Ledger) error { return l.AcquireClaim(train(on("G0", "big"))) },
			want:   []string{"G0 Claim claim-1 (ml/train) requests=big pods=P1,P2", "G1 Claim claim-1 (ml/train) pods=P1,P2"},
		},
		"acquired again with a name": {
			change: func(l *Ledger) error {
				return l.Acquire(gpu.Holder{Kind: gpu.HolderClaim, ID: "claim-1", Namespace: "ml", Name: "train"}, []gpu.DeviceKey{key("G0")})
			},
			want: []string{"G0 Claim claim-1 (ml/train)", "G1 Claim claim-1 (ml/train)"},
		},
		"acquired again with one more device": {
			change: func(l *Ledger) error { return l.AcquireClaim(train(on("G2"), on("G0", "b", "a", "b"))) },
			want: []string{
				"G0 Claim claim-1 (ml/train) requests=a,b pods=P1,P2", "G1 Claim claim-1 (ml/train) pods=P1,P2", "G2 Claim claim-1 (ml/train) pods=P1,P2",
			},
		},
		"adopted with names and pods": {
			change: func(l *Ledger) error { _, err := l.AdoptAll([]Claim{train(on("G0", "big"))}); return err },
			want:   []string{"G0 Claim claim-1 (ml/train) requests=big pods=P1,P2", "G1 Claim claim-1 (ml/train) pods=P1,P2"},
		},
		"acquired again without names": {
			change: func(l *Ledger) error { return errors.Join(l.AcquireClaim(train(on("G0"))), l.AcquireClaim(base)) },
			want:   []string{"G0 Claim claim-1 (ml/train) pods=P1,P2", "G1 Claim claim-1 (ml/train) pods=P1,P2"},
		},
		"listed by the kubelet": {
			change: listed(ClaimPods{UID: "claim-1", Pods: train().Pods}),
			want:   []string{"G0 Claim claim-1 pods=P1,P2", "G1 Claim claim-1 pods=P1,P2"},
		},
		"listed with another pod": {
			change: listed(ClaimPods{UID: "other", Pods: train().Pods}, ClaimPods{UID: "claim-1", Pods: second}),
			want:   []string{"G0 Claim claim-1 pods=P1,P3", "G1 Claim claim-1 pods=P1,P3"},
		},
		"listed twice with a pod": {
			change: listed(ClaimPods{UID: "claim-1", Pods: append(second, second[0], gpu.Pod{UID: "P1"}, gpu.Pod{})}),
			want:   []string{"G0 Claim claim-1 pods=P1,P3", "G1 Claim claim-1 pods=P1,P3"},
		},
		"its last pod has left": {
			change: func(l *Ledger) error {
				return errors.Join(l.AcquireClaim(train(on("G0"))), listed(ClaimPods{UID: "claim-1", Pods: []gpu.Pod{}})(l))
			},
			want: []string{"G0 Claim claim-1 (ml/train)", "G1 Claim claim-1 (ml/train)"},
		},
		"not listed": {
			change: func(l *Ledger) error { return errors.Join(l.AcquireClaim(train(on("G0"))), listed()(l)) },
			want:   []string{"G0 Claim claim-1 (ml/train) pods=P1,P2", "G1 Claim claim-1 (ml/train) pods=P1,P2"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			clock := clocktesting.NewFakePassiveClock(start)
			l := openTest(t, path, func(d *Deps) { d.Clock = clock })
			if err := l.AcquireClaim(base); err != nil {
				t.Fatal(err)
			}
			clock.SetTime(start.Add(time.Hour))
			if err := test.change(l); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, names(l)); diff != "" {
				t.Errorf("in force (-want +got):\n%s", diff)
			}
			if since := l.records[key("G0")].Since; !since.Equal(start) {
				t.Errorf("held since %s, want since the first Acquire", since)
			}
			if diff := cmp.Diff(test.want, names(openTest(t, path, nil))); diff != "" {
				t.Errorf("in the file (-want +got):\n%s", diff)
			}
		})
	}
}

// listed is a comparison with a node whose kubelet lists claims.
func listed(claims ...ClaimPods) func(*Ledger) error {
	return func(l *Ledger) error {
		view := l.NewView()
		view.Claims = claims
		if changes := l.Reconcile(view); len(changes.Conflicts) > 0 {
			return errors.New(changes.String())
		}
		return nil
	}
}

// TestPodsKeepTheirNames: a source that knows only the UIDs of a claim's pods does not remove the names.
func TestPodsKeepTheirNames(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	uids := []gpu.Pod{{UID: "P2"}, {UID: "P3"}}
	sources := map[string]func() error{
		"the kubelet's record": func() error { return listed(ClaimPods{UID: "claim-1", Pods: uids})(l) },
		"adoption": func() error {
			_, err := l.AdoptAll([]Claim{{UID: "claim-1", Pods: uids, Devices: []ClaimDevice{on("G0")}}})
			return err
		},
	}
	for name, source := range sources {
		if err := l.AcquireClaim(train(on("G0"))); err != nil {
			t.Fatal(err)
		}
		if err := source(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]gpu.Pod{{UID: "P2", Namespace: "ml", Name: "train-1"}, {UID: "P3"}}, l.Holdings()[0].Pods); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestFurtherPodOfAClaim: the containers of a pod that uses a claim which is already prepared are the claim's own from the first view on,
// also on a node whose kubelet has no checkpoint, and of which the API server says nothing. Those of a pod that the kubelet does not
// list are a conflict.
func TestFurtherPodOfAClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, path, nil)
	if err := l.AcquireClaim(train(on("G0"))); err != nil {
		t.Fatal(err)
	}
	follower := openTest(t, path, func(d *Deps) { d.Follow = true })
	for name, at := range map[string]*Ledger{"writer": l, "follower": follower} {
		view := at.NewView()
		view.CheckpointErr = errors.New("no checkpoint")
		view.Claims = []ClaimPods{{UID: "claim-1", Pods: append(train().Pods, gpu.Pod{UID: "P3"})}}
		view.Containers = []Container{
			{ID: "c1", PodUID: "P1", Name: "main", Open: []gpu.DeviceKey{key("G0")}}, {ID: "c3", PodUID: "P3", Name: "main", Open: []gpu.DeviceKey{key("G0")}},
		}
		if changes := at.Reconcile(view); len(changes.Conflicts)+len(changes.Unmarked) > 0 {
			t.Errorf("%s: the pods of one claim:\n%s", name, changes)
		}
		view.Containers = append(view.Containers, Container{ID: "c4", PodUID: "P4", Name: "main", Open: []gpu.DeviceKey{key("G0")}})
		if changes := at.Reconcile(view); len(changes.Conflicts) != 1 || !slices.Equal(changes.Conflicts[0].Pods, []string{"claim-1", "P4"}) {
			t.Errorf("%s: a pod that does not use the claim:\n%s", name, changes)
		}
	}
}

// TestClaimWithoutUID: a claim that nothing identifies holds nothing.
func TestClaimWithoutUID(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	if err := l.AcquireClaim(Claim{}); err == nil {
		t.Error("acquire: a claim without a UID was accepted")
	}
	if refused, err := l.AdoptAll([]Claim{{}}); err != nil || len(refused) != 1 {
		t.Errorf("adopt: a claim without a UID was accepted: %v, %v", refused, err)
	}
}

// TestAdoptAllBeforeTheFirstComparison shows that the order matters when the ledger is lost: claims that are adopted
// first have no orphans, and their devices are never allocated to a pod.
func TestAdoptAllBeforeTheFirstComparison(t *testing.T) {
	running := []Container{
		{ID: "c1", PodUID: "P1", Name: "main", Open: []gpu.DeviceKey{key("G0")}},
		{ID: "c2", PodUID: "P2", Name: "main", Open: []gpu.DeviceKey{key("G1/M1")}},
	}
	claims := []Claim{train(on("G0", "whole")), {
		UID: "claim-2", Namespace: "ml", Name: "small", Pods: []gpu.Pod{{UID: "P2"}}, Devices: []ClaimDevice{on("G1/M1"), on("G1/4:2")},
	}}
	claimed := []string{
		"G0 Claim claim-1 (ml/train) requests=whole pods=P1,P2", "G1/4:2 Claim claim-2 (ml/small) pods=P2", "G1/M1 Claim claim-2 (ml/small) pods=P2",
	}
	// The checkpoint is lost too, and the pods are not known yet: every container with device nodes counts.
	view := func(l *Ledger) NodeView {
		v := l.NewView()
		v.Containers, v.CheckpointErr = running, errors.New("missing")
		return v
	}
	tests := map[string]struct {
		first   func(l *Ledger) (orphans int)
		second  func(l *Ledger) (orphans int)
		orphans int
	}{
		"adopted first": {first: adoptStep(t, claims), second: compareStep(view)},
		"compared first": {
			first: compareStep(view), second: adoptStep(t, claims), orphans: 2,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			l := openTest(t, path, nil)
			if orphans := test.first(l) + test.second(l); orphans != test.orphans {
				t.Errorf("%d devices were held by an orphan, want %d", orphans, test.orphans)
			}
			changes := l.Reconcile(view(l))
			if len(changes.Conflicts) > 0 || len(changes.Unmarked) > 0 {
				t.Errorf("the comparison found %v", changes)
			}
			if diff := cmp.Diff(claimed, names(l)); diff != "" {
				t.Errorf("in the end (-want +got):\n%s", diff)
			}
			if err := l.Acquire(pod, []gpu.DeviceKey{key("G1/M1")}); err == nil {
				t.Error("a claim's device was allocated to a pod")
			}
		})
	}
}

func adoptStep(t *testing.T, claims []Claim) func(*Ledger) int {
	return func(l *Ledger) int {
		if refused, err := l.AdoptAll(claims); err != nil || len(refused) > 0 {
			t.Errorf("adopt: %v, %v", refused, err)
		}
		return 0
	}
}

func compareStep(view func(*Ledger) NodeView) func(*Ledger) int {
	return func(l *Ledger) int {
		orphans := 0
		for _, change := range l.Reconcile(view(l)).List {
			if change.What == Orphaned {
				orphans++
			}
		}
		return orphans
	}
}

// TestAdoptAllIsOneWrite counts the writes of twenty claims, and names those that are refused.
func TestAdoptAllIsOneWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	writes := 0
	l := openTest(t, path, func(d *Deps) {
		d.Fault = func(s Step) error {
			if s == StepRename {
				writes++
			}
			return nil
		}
	})
	if err := l.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: "reset"}, []gpu.DeviceKey{key("G3")}); err != nil {
		t.Fatal(err)
	}
	var claims []Claim
	for i := range 20 {
		id := string(rune('a' + i))
		claims = append(claims, Claim{UID: id, Name: id, Devices: []ClaimDevice{{Key: gpu.DeviceKey{GPU: gpu.UUID("G" + id)}}}})
	}
	claims = append(claims, Claim{UID: "held", Devices: []ClaimDevice{on("G3/M1"), on("G4")}}, Claim{UID: "second", Devices: []ClaimDevice{on("G4/0:1")}})
	writes = 0
	refused, err := l.AdoptAll(claims)
	if err != nil || writes != 1 {
		t.Errorf("%d writes and %v, want one", writes, err)
	}
	var got []string
	for _, r := range refused {
		var blocked *BlockedError
		if !errors.As(r.Err, &blocked) {
			t.Fatalf("refused with %v", r.Err)
		}
		got = append(got, r.Claim.UID+" "+blocked.Key.String()+" "+blocked.Holding.Holder.ID)
	}
	if diff := cmp.Diff([]string{"held G3/M1 reset", "second G4/0:1 held"}, got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if next := openTest(t, path, nil); len(next.Holdings()) != 22 {
		t.Errorf("the file has %d holdings, want 22: %v", len(next.Holdings()), names(next))
	}
	writes = 0
	if again, err := l.AdoptAll(claims[:20]); err == nil || len(again) > 0 {
		t.Errorf("an agent that was superseded adopted: %v, %v", again, err)
	}
}

// TestAdoptAllWithAFullDisk: the claims are in force, and none is prepared again before it is in the file.
func TestAdoptAllWithAFullDisk(t *testing.T) {
	path, full := filepath.Join(t.TempDir(), "ledger"), false
	l := openTest(t, path, func(d *Deps) {
		d.Fault = func(s Step) error {
			if full && s == StepTorn {
				return errors.New("no space left on device")
			}
			return nil
		}
	})
	full = true
	if refused, err := l.AdoptAll([]Claim{train(on("G0"))}); err == nil || len(refused) > 0 {
		t.Errorf("adopt: %v, %v", refused, err)
	}
	if err := l.Acquire(pod, []gpu.DeviceKey{key("G0")}); err == nil {
		t.Error("the claim's device was allocated to a pod")
	}
	if err := l.AcquireClaim(train(on("G0"))); err == nil {
		t.Error("the claim was prepared although it is not in the file")
	}
	full = false
	if err := l.AcquireClaim(train(on("G0"))); err != nil {
		t.Error(err)
	}
	if got := names(openTest(t, path, nil)); !slices.Equal(got, []string{"G0 Claim claim-1 (ml/train) pods=P1,P2"}) {
		t.Errorf("the file has %v", got)
	}
}

// TestRetryOfAPrepareThatIsUnderWay: two calls for one claim at a time, as a kubelet makes them after its timeout. Neither
// returns without an error while the devices are not in the file.
func TestRetryOfAPrepareThatIsUnderWay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	inWrite, fail := make(chan struct{}), make(chan struct{})
	once := sync.Once{}
	armed := false
	l := openTest(t, path, func(d *Deps) {
		d.Fault = func(s Step) error {
			if !armed || s != StepTorn {
				return nil
			}
			var err error
			once.Do(func() {
				close(inWrite)
				<-fail
				err = errors.New("no space left on device")
			})
			return err
		}
	})
	armed = true
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- l.AcquireClaim(train(on("G0"))) }()
	<-inWrite
	go func() { second <- l.AcquireClaim(train(on("G0"))) }()
	select {
	case err := <-second:
		t.Errorf("the retry ended before the first call: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(fail)
	if err := <-first; err == nil {
		t.Error("the first call succeeded without a write")
	}
	if err := <-second; err != nil {
		t.Errorf("the retry: %v", err)
	}
	blob, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(blob), `"claim-1"`) {
		t.Errorf("the file is %s (%v)", blob, err)
	}
}

// TestClaimsAtTheSameTime makes all calls about claims concurrently, for the race detector, while a second agent follows and takes
// over once: in the end the file has what the writer has in force, and no two claims overlap.
func TestClaimsAtTheSameTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	first := openTest(t, path, func(d *Deps) { d.Placement = scanned })
	second := openTest(t, path, func(d *Deps) { d.Placement, d.Follow = scanned, true })
	parts := []func(l *Ledger, c Claim) error{
		func(l *Ledger, c Claim) error { return l.AcquireClaim(c) },
		func(l *Ledger, c Claim) error { return listed(ClaimPods{UID: c.UID, Pods: []gpu.Pod{{UID: c.UID}}})(l) },
		func(l *Ledger, c Claim) error { return l.Resolve(c.Holder(), c.Devices[0].Key, gpu.UUID("M"+c.UID)) },
		func(l *Ledger, c Claim) error { return l.Release(c.Holder(), nil) },
		func(l *Ledger, c Claim) error { _, err := l.AdoptAll([]Claim{c}); return err },
		func(l *Ledger, _ Claim) error { l.Reconcile(l.NewView()); return nil },
		func(l *Ledger, _ Claim) error { l.BlockedBy("gpu", key("G0/M1")); l.HasWriter(); return l.followFile() },
	}
	var wait sync.WaitGroup
	for i, part := range parts {
		for _, l := range []*Ledger{first, second} {
			wait.Go(func() {
				for n := range 20 {
					if l == second && i == 0 && n == 10 {
						if err := l.TakeOver(); err != nil {
							t.Error(err)
						}
					}
					start := (n + i) % 4 * 2
					c := Claim{UID: string(rune('a' + n%5)), Devices: []ClaimDevice{{Key: gpu.Placed("G0", gpu.Placement{Start: start, Size: 2})}}}
					_ = part(l, c) // It may be refused.
				}
			})
		}
	}
	wait.Wait()
	if !second.Writes() {
		t.Fatal("the second agent is not the writer")
	}
	second.Reconcile(second.NewView())
	check(t, second, path, names(second)...)
	holdings := second.Holdings()
	for i := range holdings {
		for k := range holdings[:i] {
			a, b := &holdings[i], &holdings[k]
			if a.Located().Overlaps(b.Located()) && !a.Holder.Same(b.Holder) {
				t.Errorf("%s and %s are held at the same time", a, b)
			}
		}
	}
}

// TestClaimOnHardwareThatTheCheckpointLists: the kubelet's checkpoint keeps the entries of pods that have ended. At an agent's start such
// a pod is not known until the API server has answered, and a claim may have got the hardware in another size since.
func TestClaimOnHardwareThatTheCheckpointLists(t *testing.T) {
	listed := func(text string) []Assignment {
		return []Assignment{{PodUID: "P8", Container: "main", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{key(text)}}}
	}
	tests := map[string]struct {
		device   string // the claim's
		listed   string
		state    PodState
		running  bool
		want     []string
		holdings []string
	}{
		"not known yet":                  {device: "G0/M1", listed: "G0"},
		"not known yet, placement":       {device: "G0/0:4", listed: "G0"},
		"not known yet, MIG device":      {device: "G0", listed: "G0/M1"},
		"not known yet, replica":         {device: "G0", listed: "G0#2"},
		"not known yet, the same device": {device: "G0", listed: "G0"},
		"not known yet, another GPU":     {device: "G1/M1", listed: "G0", holdings: []string{"G0 Pod P8 containers=main"}},
		"not known yet, beside it":       {device: "G0/M1", listed: "G0/M2", holdings: []string{"G0/M2 Pod P8 containers=main"}},
		"ended":                          {device: "G0/M1", listed: "G0", state: PodEnded},
		"living": {
			device: "G0/M1", listed: "G0", state: PodLiving, want: []string{"G0/M1: P8, claim-1"}, holdings: []string{"G0 Pod P8 containers=main"},
		},
		"not known yet, but it runs": {
			device: "G0/M1", listed: "G0", running: true, want: []string{"G0/M1: P8, claim-1"}, holdings: []string{"G0 Pod P8 containers=main live=c8"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) {
				withPlacements(d)
				d.Pod = func(string) PodFacts { return PodFacts{State: test.state} }
			})
			if refused, err := l.AdoptAll([]Claim{train(ClaimDevice{Key: anyKey(test.device)})}); err != nil || len(refused) > 0 {
				t.Fatal(err, refused)
			}
			view := NodeView{Assignments: listed(test.listed), Pods: []NodePod{{UID: "P8", Ended: test.state == PodEnded}}}
			if test.running {
				view.Containers = []Container{{ID: "c8", PodUID: "P8", Name: "main", Open: []gpu.DeviceKey{key(test.listed)}}}
			}
			if diff := cmp.Diff(test.want, conflicts(l, view)); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
			others := slices.DeleteFunc(names(l), func(text string) bool { return strings.Contains(text, "claim-1") })
			if diff := cmp.Diff(test.holdings, others, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("other holdings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnknownPodBesideAClaim: after a restart of the kubelet its checkpoint does not count for a moment, and a new pod is not known before
// the API server has sent it. When the kubelet lists it for a claim, it may have another claim's device by admin access, so no conflict is
// reported until it is known.
func TestUnknownPodBesideAClaim(t *testing.T) {
	tests := map[string]struct {
		facts    PodFacts
		claim    string // for which the kubelet lists the pod
		open     string
		want     []string
		unmarked int
	}{
		"not known, of another claim":                   {claim: "claim-2", open: "G0"},
		"not known, of another claim, on a free device": {claim: "claim-2", open: "G1", unmarked: 1},
		"not known, of no claim":                        {open: "G0", want: []string{"G0: claim-1, P9"}, unmarked: 1},
		"living without devices":                        {facts: PodFacts{State: PodLiving, Containers: []PodContainer{{Name: "main"}}}, open: "G0"},
		"living with devices": {
			facts: PodFacts{State: PodLiving, Containers: []PodContainer{{Name: "main", Devices: map[string]int{"nvidia.com/gpu": 1}}}}, claim: "claim-2", open: "G0",
			want: []string{"G0: claim-1, P9"}, unmarked: 1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) { d.Pod = func(string) PodFacts { return test.facts } })
			if err := l.AcquireClaim(train(on("G0"))); err != nil {
				t.Fatal(err)
			}
			view := NodeView{CheckpointErr: errDistrusted, Containers: []Container{{ID: "c9", PodUID: "P9", Name: "main", Open: []gpu.DeviceKey{key(test.open)}}}}
			view.Claims = []ClaimPods{{UID: "claim-1", Pods: train().Pods}}
			if test.claim != "" {
				view.Claims = append(view.Claims, ClaimPods{UID: test.claim, Pods: []gpu.Pod{{UID: "P9"}}})
			}
			if changes := l.Reconcile(view); len(changes.Unmarked) != test.unmarked {
				t.Errorf("unmarked are %v, want %d", changes.Unmarked, test.unmarked)
			}
			if diff := cmp.Diff(test.want, conflicts(l, view)); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
			if free := l.records[key("G1")] == nil; free != (test.open != "G1") {
				t.Errorf("the other device is free: %t", free)
			}
		})
	}
}

// TestTimeSliceOfAClaim: the time slice of a whole GPU is in the file, which keeps the version that older agents read, is changed by a
// further prepare, and is kept when the claim is adopted, of which nothing is known.
func TestTimeSliceOfAClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, path, nil)
	slices := func() map[gpu.DeviceKey]string {
		all := map[gpu.DeviceKey]string{}
		for _, h := range l.Holdings() {
			all[h.Key] = h.TimeSlice
		}
		return all
	}
	acquire := func(slice string) {
		t.Helper()
		whole, part := on("G0"), on("G1/M1")
		whole.TimeSlice, part.TimeSlice = slice, slice
		if err := l.AcquireClaim(train(whole, part)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, slice string) {
		t.Helper()
		if diff := cmp.Diff(map[gpu.DeviceKey]string{key("G0"): slice, key("G1/M1"): ""}, slices()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	acquire("long")
	want("acquired", "long")
	acquire("short")
	want("acquired again", "short")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	blob, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(blob), `{"format":"berth-ledger","version":1,`) {
		t.Errorf("the file is %.60s (%v), want version 1", blob, err)
	}
	l = openTest(t, path, nil)
	want("opened again", "short")
	if refused, err := l.AdoptAll([]Claim{train(on("G0"), on("G1/M1"))}); err != nil || len(refused) > 0 {
		t.Errorf("%v %v", refused, err)
	}
	want("adopted", "short")
	if err := l.Release(train().Holder(), nil); err != nil || len(slices()) > 0 {
		t.Errorf("%v; left %v", err, slices())
	}
}

// TestMPSOfAClaim: the limits of a claim's MPS daemon come with its time slice, are in the file, and are kept by an adoption, which does
// not know them.
func TestMPSOfAClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, path, nil)
	limits := gpu.MPSLimits{PinnedMemoryMiB: -1, ActiveThreadPercentage: 25}
	acquire := func(limits gpu.MPSLimits) {
		t.Helper()
		whole := on("G0")
		whole.TimeSlice, whole.MPS = gpu.TimeSliceDefault, limits
		if err := l.AcquireClaim(train(whole)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, limits gpu.MPSLimits) {
		t.Helper()
		if held := l.Holdings(); len(held) != 1 || held[0].MPS != limits {
			t.Errorf("%s: the ledger has %+v, want the limits %+v", when, held, limits)
		}
	}
	acquire(gpu.MPSLimits{})
	want("without MPS", gpu.MPSLimits{})
	acquire(limits)
	want("with MPS", limits)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openTest(t, path, nil)
	want("opened again", limits)
	if refused, err := l.AdoptAll([]Claim{train(on("G0"))}); err != nil || len(refused) > 0 {
		t.Errorf("%v %v", refused, err)
	}
	want("adopted", limits)
	if _, err := parseHoldings(Version, [][]byte{[]byte(`{"key":{"gpu":"G0"},"holder":{"kind":"Claim","id":"c"},"since":"2026-12-01T12:00:00Z","mps":{"pinnedMemoryMiB":-2,"activeThreadPercentage":101}}`)}); err == nil {
		t.Error("limits that cannot be set were read")
	}
}

// TestAllocatedAgain: a claim that is prepared with other devices under its UID releases those of its earlier allocation, unless a running
// container uses them or that is not known. What is left is what the file has.
func TestAllocatedAgain(t *testing.T) {
	tests := map[string]struct {
		containers []Container
		err        error
		devices    []ClaimDevice
		want       []string
	}{
		"nothing runs":                         {devices: []ClaimDevice{on("G2")}, want: []string{"G2"}},
		"one device stays":                     {devices: []ClaimDevice{on("G1"), on("G2")}, want: []string{"G1", "G2"}},
		"no device any more":                   {want: nil},
		"a container of another pod runs":      {containers: []Container{{ID: "c", PodUID: "P9", Open: []gpu.DeviceKey{key("G0")}}}, devices: []ClaimDevice{on("G2")}, want: []string{"G2"}},
		"a container was given the device":     {containers: []Container{{ID: "c", PodUID: "P9", Keys: []gpu.DeviceKey{key("G0")}}}, devices: []ClaimDevice{on("G2")}, want: []string{"G0", "G2"}},
		"a container of its pod has the node":  {containers: []Container{{ID: "c", PodUID: "P1", Open: []gpu.DeviceKey{key("G1")}}}, devices: []ClaimDevice{on("G2")}, want: []string{"G1", "G2"}},
		"containers cannot be read":            {err: errors.New("no cgroup"), devices: []ClaimDevice{on("G2")}, want: []string{"G0", "G1", "G2"}},
		"the same devices, containers unknown": {err: errors.New("no cgroup"), devices: []ClaimDevice{on("G0"), on("G1")}, want: []string{"G0", "G1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			l := openTest(t, path, func(d *Deps) { d.Look = func() ([]Container, error) { return tc.containers, tc.err } })
			other := Claim{UID: "claim-2", Devices: []ClaimDevice{on("G3")}}
			for _, claim := range []Claim{train(on("G0"), on("G1")), other, train(tc.devices...)} {
				if err := l.AcquireClaim(claim); err != nil {
					t.Fatal(err)
				}
			}
			want := append(slices.Clone(tc.want), "G3")
			for range 2 { // The second time as the next agent reads it.
				var got []string
				for _, h := range l.Holdings() {
					got = append(got, h.Key.String())
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("holdings (-want +got):\n%s", diff)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l = openTest(t, path, func(*Deps) {})
			}
		})
	}
}

// TestAllocatedAgainUnwritten: when the write fails the claim keeps the devices of its earlier allocation, and has none of the new ones.
func TestAllocatedAgainUnwritten(t *testing.T) {
	full := false
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), func(d *Deps) {
		d.Look = func() ([]Container, error) { return nil, nil }
		d.Fault = func(Step) error {
			if full {
				return errors.New("disk full")
			}
			return nil
		}
	})
	if err := l.AcquireClaim(train(on("G0"))); err != nil {
		t.Fatal(err)
	}
	full = true
	if err := l.AcquireClaim(train(on("G1"))); err == nil {
		t.Fatal("acquired devices that are in no file")
	}
	if got := l.Holdings(); len(got) != 1 || got[0].Key != key("G0") {
		t.Errorf("it holds %v, want G0", got)
	}
}
