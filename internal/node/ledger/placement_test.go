package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// scanned are the placements that the last scan found: M1 and M2 on each GPU.
func scanned(key gpu.DeviceKey) gpu.Placement {
	return map[gpu.UUID]gpu.Placement{"M1": {Start: 0, Size: 4}, "M2": {Start: 4, Size: 2}}[key.MIG]
}

func withPlacements(d *Deps) { d.Placement = scanned }

// TestHoldsByPlacement has two holders one after the other, the second of which is refused or not.
func TestHoldsByPlacement(t *testing.T) {
	pods := gpu.Holder{Kind: gpu.HolderPod, Resource: "nvidia.com/mig-1g.5gb"}
	maintenance := gpu.Holder{Kind: gpu.HolderMaintenance, ID: "mig-change"}
	tests := map[string]struct {
		first    string
		second   string
		firstBy  gpu.Holder
		secondBy gpu.Holder
		refused  bool
	}{
		"disjoint placements":               {first: "G0/0:4", second: "G0/4:4"},
		"placements on two GPUs":            {first: "G0/0:4", second: "G1/0:4"},
		"the same placement":                {first: "G0/0:4", second: "G0/0:4", refused: true},
		"placements that overlap":           {first: "G0/0:4", second: "G0/3:1", refused: true},
		"a placement in a held GPU":         {first: "G0", second: "G0/0:1", refused: true},
		"a GPU with a held placement":       {first: "G0/0:1", second: "G0", refused: true},
		"a replica of such a GPU":           {first: "G0/0:1", second: "G0#2", refused: true},
		"a MIG device there":                {first: "G0/0:2", second: "G0/M1", refused: true},
		"a MIG device beside it":            {first: "G0/0:4", second: "G0/M2"},
		"a placement below a MIG device":    {first: "G0/M2", second: "G0/4:4", refused: true},
		"a placement beside a MIG device":   {first: "G0/M2", second: "G0/6:2"},
		"a MIG device that was not scanned": {first: "G0/6:2", second: "G0/M9", refused: true},
		"a placement beside one":            {first: "G0/M9", second: "G0/6:2", refused: true},
		"a pod's MIG device there":          {first: "G0/0:2", second: "G0/M1", secondBy: pods, refused: true},
		"a pod's MIG device beside it":      {first: "G0/0:4", second: "G0/M2", secondBy: pods},
		"a pod's GPU":                       {first: "G0/0:4", second: "G0", secondBy: pods, refused: true},
		"a placement below a pod's device":  {first: "G0/M1", firstBy: pods, second: "G0/3:1", refused: true},
		"a placement beside a pod's device": {first: "G0/M1", firstBy: pods, second: "G0/4:4"},
		"a placement in a pod's GPU":        {first: "G0#1", firstBy: pods, second: "G0/4:4", refused: true},
		"maintenance of a MIG device there": {first: "G0/0:2", second: "G0/M1", secondBy: maintenance, refused: true},
		"maintenance of one beside it":      {first: "G0/0:4", second: "G0/M2", secondBy: maintenance},
		"maintenance of the GPU":            {first: "G0/0:4", second: "G0", secondBy: maintenance, refused: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := openTest(t, filepath.Join(t.TempDir(), "ledger"), withPlacements)
			by := func(holder gpu.Holder, id string) gpu.Holder {
				if holder.Kind == "" {
					return claim(id)
				}
				return holder
			}
			first, second := by(test.firstBy, "A"), by(test.secondBy, "B")
			if err := l.Acquire(first, []gpu.DeviceKey{anyKey(test.first)}); err != nil {
				t.Fatal(err)
			}
			if second.Kind == gpu.HolderPod {
				block, blocked := l.BlockedBy(second.Resource, anyKey(test.second))
				if blocked != test.refused || blocked && (block.Through != anyKey(test.first) || !block.Unseen) {
					t.Errorf("the device plugin finds %v, %v", block, blocked)
				}
			}
			err := l.Acquire(second, []gpu.DeviceKey{anyKey(test.second)})
			var blocked *BlockedError
			if (err != nil) != test.refused || test.refused && (!errors.As(err, &blocked) || blocked.Holding.Key != anyKey(test.first)) {
				t.Errorf("the second holder got %v, refused %v", err, test.refused)
			}
		})
	}
}

// TestInvalidKeys: nothing is held under a key that identifies no device.
func TestInvalidKeys(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	for _, bad := range []gpu.DeviceKey{
		{}, {GPU: "G0", MIG: "M1", Placement: gpu.Placement{Size: 1}}, {GPU: "G0", Placement: gpu.Placement{Start: -1, Size: 1}}, {GPU: "G0", Share: -1},
	} {
		if err := l.AcquireClaim(train(ClaimDevice{Key: bad})); err == nil || len(l.Holdings()) > 0 {
			t.Errorf("%v was acquired: %v", bad, err)
		}
		if refused, err := l.AdoptAll([]Claim{train(ClaimDevice{Key: bad})}); err != nil || len(refused) != 1 || len(l.Holdings()) > 0 {
			t.Errorf("%v was adopted: %v", bad, err)
		}
	}
	if err := l.Acquire(pod, []gpu.DeviceKey{anyKey("G0/0:4")}); err == nil || len(l.Holdings()) > 0 {
		t.Errorf("a pod got a MIG device that does not exist: %v", err)
	}
}

// TestResolve follows a claim from its placement to the MIG device and back.
func TestResolve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	clock := clocktesting.NewFakePassiveClock(start)
	l := openTest(t, path, func(d *Deps) { d.Clock = clock })
	mine := train(on("G0/0:4", "half"), on("G1#2"))
	mine.Devices[0].Profile = "4g.40gb"
	if err := l.AcquireClaim(mine); err != nil {
		t.Fatal(err)
	}
	mine.Devices[0].Profile = "" // It keeps the profile that the ledger has.
	if err := l.AcquireClaim(mine); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(start.Add(time.Minute))
	placed, whole := "G0/0:4 Claim claim-1 (ml/train) requests=half pods=P1,P2", "G1#2 Claim claim-1 (ml/train) pods=P1,P2"
	made := "G0/M1 Claim claim-1 (ml/train) requests=half pods=P1,P2"
	for range 2 { // The second time changes nothing.
		if err := l.Resolve(mine.Holder(), anyKey("G0/0:4"), "M1"); err != nil {
			t.Fatal(err)
		}
		check(t, l, path, made, whole)
	}
	h := l.records[key("G0/M1")]
	if h.Placement != (gpu.Placement{Start: 0, Size: 4}) || h.Profile != "4g.40gb" || !h.Since.Equal(start) {
		t.Errorf("the MIG device is held as %+v", h.Holding)
	}
	// The scan has not found M1 yet, and still another claim can have the other half.
	if err := l.Acquire(claim("B"), []gpu.DeviceKey{anyKey("G0/4:4")}); err != nil {
		t.Errorf("the other half: %v", err)
	}
	if err := l.Acquire(claim("C"), []gpu.DeviceKey{anyKey("G0/3:1")}); err == nil {
		t.Error("slices of the MIG device were acquired")
	}
	if got := l.clashes(); len(got) > 0 {
		t.Errorf("clashes: %v", got)
	}
	for range 2 {
		if err := l.Unresolve(mine.Holder(), key("G0/M1"), gpu.Placement{Start: 0, Size: 4}); err != nil {
			t.Fatal(err)
		}
		check(t, l, path, placed, "G0/4:4 Claim B", whole)
	}
	if l.records[anyKey("G0/0:4")].Placement.Known() {
		t.Error("a placement is recorded twice")
	}
	stored := openTest(t, path, func(d *Deps) { d.Follow = true }).Holdings()
	if stored[0].Profile != "4g.40gb" || stored[1].Profile != "" {
		t.Errorf("the file has the profiles of %+v", stored)
	}
}

func check(t *testing.T, l *Ledger, path string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, names(l)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
	follower := openTest(t, path, func(d *Deps) { d.Follow = true })
	if diff := cmp.Diff(want, names(follower)); diff != "" {
		t.Errorf("in the file (-want +got):\n%s", diff)
	}
}

func TestResolveIsRefused(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"), nil)
	if err := errors.Join(l.AcquireClaim(train(on("G0/0:4"))), l.Acquire(claim("B"), []gpu.DeviceKey{anyKey("G0/4:4")})); err != nil {
		t.Fatal(err)
	}
	// What no grant does: the node shows a container on the new device.
	l.Reconcile(NodeView{Containers: []Container{{ID: "c9", PodUID: "P9", Name: "main", Keys: []gpu.DeviceKey{key("G0/M1")}}}})
	before := names(l)
	mine := train()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"not held":                {l.Resolve(mine.Holder(), anyKey("G1/0:4"), "M1"), "ResourceClaim ml/train does not hold device G1/0:4"},
		"held by another":         {l.Resolve(mine.Holder(), anyKey("G0/4:4"), "M2"), "does not hold device G0/4:4"},
		"in use":                  {l.Resolve(mine.Holder(), anyKey("G0/0:4"), "M1"), "device G0/M1 is still in use"},
		"a whole GPU":             {l.Resolve(mine.Holder(), key("G0"), "M1"), "want a placement and a MIG device"},
		"no MIG device":           {l.Resolve(mine.Holder(), anyKey("G0/0:4"), ""), "want a placement and a MIG device"},
		"back, of a whole GPU":    {l.Unresolve(mine.Holder(), key("G0"), gpu.Placement{Size: 4}), "want a MIG device and a placement"},
		"back, to no placement":   {l.Unresolve(mine.Holder(), key("G0/M3"), gpu.Placement{}), "want a MIG device and a placement"},
		"back, of another's":      {l.Unresolve(mine.Holder(), key("G0/M3"), gpu.Placement{Size: 2}), "does not hold device G0/M3"},
		"by one that has nothing": {l.Resolve(claim("D"), anyKey("G0/0:4"), "M1"), "ResourceClaim D does not hold"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, test.err, test.want)
		}
	}
	if diff := cmp.Diff(before, names(l)); diff != "" {
		t.Errorf("after what was refused (-want +got):\n%s", diff)
	}
}

// durableSteps are changes for the tests that kill the program: what the file has before and after.
var durableSteps = map[string]struct {
	do     func(l *Ledger) error
	before []string
	after  []string
}{
	"AcquireClaim": {
		do:     func(l *Ledger) error { return l.AcquireClaim(train(on("G1/0:4", "a"), on("G2"))) },
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"},
		after: []string{
			"G0/0:4 Claim A", "G0/M2 Claim B", "G1/0:4 Claim claim-1 (ml/train) requests=a pods=P1,P2", "G2 Claim claim-1 (ml/train) pods=P1,P2",
		},
	},
	"AcquireClaim of more": {
		do: func(l *Ledger) error {
			return l.AcquireClaim(Claim{UID: "A", Devices: []ClaimDevice{on("G0/0:4"), on("G3")}})
		},
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"}, after: []string{"G0/0:4 Claim A", "G0/M2 Claim B", "G3 Claim A"},
	},
	"Resolve": {
		do:     func(l *Ledger) error { return l.Resolve(claim("A"), anyKey("G0/0:4"), "M1") },
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"}, after: []string{"G0/M1 Claim A", "G0/M2 Claim B"},
	},
	"Unresolve": {
		do:     func(l *Ledger) error { return l.Unresolve(claim("B"), key("G0/M2"), scanned(key("G0/M2"))) },
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"}, after: []string{"G0/0:4 Claim A", "G0/4:2 Claim B"},
	},
	"AdoptAll": {
		do: func(l *Ledger) error {
			_, err := l.AdoptAll([]Claim{train(on("G1")), {UID: "claim-2", Devices: []ClaimDevice{on("G2/M1")}}})
			return err
		},
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"},
		after:  []string{"G0/0:4 Claim A", "G0/M2 Claim B", "G1 Claim claim-1 (ml/train) pods=P1,P2", "G2/M1 Claim claim-2"},
	},
	"Release": {
		do:     func(l *Ledger) error { return l.Release(claim("A"), nil) },
		before: []string{"G0/0:4 Claim A", "G0/M2 Claim B"}, after: []string{"G0/M2 Claim B"},
	},
}

// TestChangesOfClaimsKilledAtEachStep kills the program at each step of each change: the next one finds the state before
// or after the whole change, and can make it again. A program that lives on after the error has the state from before,
// except for AdoptAll and Release, which are then in memory only.
func TestChangesOfClaimsKilledAtEachStep(t *testing.T) {
	died := errors.New("died")
	for name, change := range durableSteps {
		for _, step := range []Step{StepLock, StepCreate, StepTorn, StepClose, StepRename} {
			t.Run(name+" at "+string(step), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "ledger")
				var at Step
				l := openTest(t, path, func(d *Deps) {
					d.Placement = scanned
					d.Fault = func(s Step) error {
						if s == at {
							return died
						}
						return nil
					}
				})
				setup := errors.Join(l.Acquire(claim("A"), []gpu.DeviceKey{anyKey("G0/0:4")}), l.Acquire(claim("B"), []gpu.DeviceKey{key("G0/M2")}))
				if setup != nil {
					t.Fatal(setup)
				}
				at = step
				if err := change.do(l); !errors.Is(err, died) {
					t.Fatalf("returned %v, want %v", err, died)
				}
				inForce := change.before
				if name == "AdoptAll" || name == "Release" {
					inForce = change.after
				}
				if diff := cmp.Diff(inForce, names(l)); diff != "" {
					t.Errorf("in force after the error (-want +got):\n%s", diff)
				}
				l.store.close() // Close would write
				next := openTest(t, path, withPlacements)
				want := change.before
				if step == StepRename {
					want = change.after
				}
				if diff := cmp.Diff(want, names(next)); diff != "" {
					t.Errorf("after death (-want +got):\n%s", diff)
				}
				if faults := next.Faults(); len(faults) > 0 {
					t.Errorf("faults: %v", faults)
				}
				if err := change.do(next); err != nil {
					t.Fatalf("again: %v", err)
				}
				check(t, next, path, change.after...)
			})
		}
	}
}

// TestPlacementsAgainstTheTwin compares the ledger with a list of holds that are checked slice by slice: random claims,
// pods and maintenance on GPUs, MIG devices and placements, which are resolved and unresolved.
func TestPlacementsAgainstTheTwin(t *testing.T) {
	dir, run := t.TempDir(), 0
	var keys []gpu.DeviceKey
	for _, text := range []string{"G0", "G0#1", "G0#2", "G0/M1", "G0/M1#1", "G0/M2", "G0/M2#2", "G0/M9", "G0/0:4", "G0/4:4", "G0/4:2", "G0/6:2", "G0/0:1", "G0/3:2", "G0/0:4#1"} {
		keys = append(keys, anyKey(text))
	}
	rapid.Check(t, func(t *rapid.T) {
		run++
		l, err := Open(Deps{Path: filepath.Join(dir, fmt.Sprint(run)), BootID: "boot", Log: quiet(), Placement: scanned,
			Clock: clocktesting.NewFakePassiveClock(start)})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w := &placedTwin{held: map[gpu.DeviceKey]string{}, at: map[gpu.DeviceKey]gpu.Placement{}}
		one := func() gpu.DeviceKey { return rapid.SampledFrom(keys).Draw(t, "key") }
		id := func() string { return rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "claim") }
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				by, some := id(), rapid.SliceOfN(rapid.SampledFrom(keys), 1, 2).Draw(t, "keys")
				free := w.free(by, some...)
				if err := l.Acquire(claim(by), some); (err == nil) != free {
					t.Fatalf("%s got %v for %v, free %v; held are %v", by, err, some, free, w.held)
				}
				for _, key := range some {
					if _, has := w.held[key]; free && !has {
						w.held[key] = by
					}
				}
			},
			"release": func(*rapid.T) {
				by := id()
				if err := l.Release(claim(by), nil); err != nil {
					t.Fatal(err)
				}
				for key, holder := range w.held {
					if holder == by {
						delete(w.held, key)
						delete(w.at, key)
					}
				}
			},
			"resolve": func(t *rapid.T) {
				by, from, mig := id(), one(), rapid.SampledFrom([]gpu.UUID{"M1", "M2", "M9"}).Draw(t, "MIG")
				to := gpu.DeviceKey{GPU: from.GPU, MIG: mig, Share: from.Share}
				known := w.slicesOf(to)
				if !from.Placement.Known() || w.held[from] != by || w.held[to] != "" || known.Size < 8 && known != from.Placement {
					t.Skip("not the device at a held placement")
				}
				want := w.freeAt(by, to, from.Placement)
				if err := l.Resolve(claim(by), from, mig); (err == nil) != want {
					t.Fatalf("resolve %s to %s: %v, want %v; held are %v", from, to, err, want, w.held)
				}
				if want {
					delete(w.held, from)
					w.held[to], w.at[to] = by, from.Placement
				}
			},
			"unresolve": func(t *rapid.T) {
				by, from := id(), one()
				at := w.slicesOf(from)
				to := gpu.DeviceKey{GPU: from.GPU, Placement: at, Share: from.Share}
				if from.MIG == "" || w.held[from] != by || at.Size == 8 || w.held[to] != "" {
					t.Skip("not a held MIG device")
				}
				if err := l.Unresolve(claim(by), from, at); (err == nil) != w.free(by, to) {
					t.Fatalf("unresolve %s to %s: %v; held are %v", from, to, err, w.held)
				} else if err == nil {
					delete(w.held, from)
					delete(w.at, from)
					w.held[to] = by
				}
			},
			"": func(t *rapid.T) {
				for key, by := range w.held {
					if h := l.records[key]; h == nil || h.Holder.ID != by {
						t.Fatalf("%s is held by %v, want %s", key, h, by)
					}
				}
				if len(l.records) != len(w.held) {
					t.Fatalf("held are %v, want %v", names(l), w.held)
				}
				for _, key := range keys {
					if key.Placement.Known() {
						continue // No pod is offered one.
					}
					if _, blocked := l.BlockedBy("gpu", key); blocked == w.free("", key) {
						t.Fatalf("%s is blocked for a pod: %v; held are %v", key, blocked, w.held)
					}
				}
			},
		})
	})
}

// placedTwin is the simple twin: the holds, of which any two are compared slice by slice.
type placedTwin struct {
	held map[gpu.DeviceKey]string
	at   map[gpu.DeviceKey]gpu.Placement
}

// slicesOf are the slices that a device has, or may have: a MIG device and its replicas have the same ones.
func (w *placedTwin) slicesOf(key gpu.DeviceKey) gpu.Placement {
	var resolved gpu.Placement
	for other, at := range w.at {
		if other.Unshared() == key.Unshared() {
			resolved = at
		}
	}
	for _, at := range []gpu.Placement{key.Placement, resolved, scanned(key)} {
		if at.Size > 0 {
			return at
		}
	}
	return gpu.Placement{Size: 8}
}

func (w *placedTwin) free(by string, keys ...gpu.DeviceKey) bool {
	return !slices.ContainsFunc(keys, func(key gpu.DeviceKey) bool { return !w.freeAt(by, key, w.slicesOf(key)) })
}

func (w *placedTwin) freeAt(by string, key gpu.DeviceKey, at gpu.Placement) bool {
	for other, holder := range w.held {
		if holder == by || other.GPU != key.GPU {
			continue
		}
		siblings := other.MIG == key.MIG && other.Placement == key.Placement
		both := other.MIG != "" && key.MIG != "" && other.MIG != key.MIG
		common := false
		theirs := w.slicesOf(other)
		for slice := theirs.Start; slice < theirs.Start+theirs.Size; slice++ {
			common = common || slice >= at.Start && slice < at.Start+at.Size
		}
		switch {
		case both, !common, siblings && key.Share != other.Share && key.Share > 0 && other.Share > 0:
		default:
			return false
		}
	}
	return true
}
