package drasync

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

var (
	placedDevice = gpu.Placed("GPU-0", gpu.Placement{Start: 4, Size: 2})
	migChange    = gpu.Holder{Kind: gpu.HolderMaintenance, ID: "change"}
	trainClaim   = ledger.Claim{UID: "u1", Namespace: "ns", Name: "train", Devices: []ledger.ClaimDevice{{Key: placedDevice, Profile: "2g.20gb", Requests: []string{"a"}}}}
)

// claimNode is a ledger and the hardware: a GPU with the MIG devices at 4.
type claimNode struct {
	ledgerClaims
	book  *ledger.Ledger
	path  string
	parts []gpu.MIGDevice
	pod   atomic.Int32 // the ledger.PodState of every pod
}

func newClaimNode(t *testing.T) *claimNode {
	t.Helper()
	n := &claimNode{path: filepath.Join(t.TempDir(), "ledger")}
	book, err := ledger.Open(ledger.Deps{
		Path: n.path, BootID: "boot", Log: slog.New(slog.DiscardHandler),
		Pod: func(string) ledger.PodFacts { return ledger.PodFacts{State: ledger.PodState(n.pod.Load())} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = book.Close() })
	n.book = book
	n.ledgerClaims = newLedgerClaims(ledgerClaimsDeps{
		Ledger: book, Current: func() *gpu.Snapshot {
			return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-0", MIG: gpu.MIG{Devices: n.parts}}}}
		},
		Maintains: migChange.Same, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	return n
}

func (n *claimNode) exists(id gpu.UUID) {
	n.parts = []gpu.MIGDevice{{Partition: gpu.Partition{UUID: id, Profile: "2g.20gb"}, Start: 4, Size: 2}}
}

// holds fails unless the ledger has exactly these keys for claims.
func (n *claimNode) holds(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, h := range n.book.Holdings() {
		if h.Holder.Kind == gpu.HolderClaim {
			got = append(got, h.Key.String()+" "+h.Profile)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the ledger has (-want +got):\n%s", diff)
	}
}

// TestPlacement follows a claim from its placement to the MIG device, over another prepare, a reset of the GPU, and its end.
func TestPlacement(t *testing.T) {
	n := newClaimNode(t)
	acquire := func() {
		t.Helper()
		if err := n.AcquireClaim(t.Context(), trainClaim); err != nil {
			t.Fatal(err)
		}
	}
	acquire()
	n.holds(t, "GPU-0/4:2 2g.20gb")
	n.exists("MIG-1")
	for range 2 {
		if err := n.ResolveClaim("u1", placedDevice, "MIG-1"); err != nil {
			t.Fatal(err)
		}
		n.holds(t, "GPU-0/MIG-1 2g.20gb")
		acquire()
		n.holds(t, "GPU-0/MIG-1 2g.20gb")
	}
	n.parts = nil
	acquire()
	n.holds(t, "GPU-0/4:2 2g.20gb")
	if err := n.ReleaseClaim("u1"); err != nil {
		t.Fatal(err)
	}
	n.holds(t)
	if err := n.AdoptClaims([]ledger.Claim{trainClaim}); err != nil {
		t.Fatal(err)
	}
	n.holds(t, "GPU-0/4:2 2g.20gb")
}

// TestAdoptExisting: a claim of the kubelet's record has the MIG device that exists.
func TestAdoptExisting(t *testing.T) {
	n := newClaimNode(t)
	n.exists("MIG-1")
	for range 2 {
		if err := n.AdoptClaims([]ledger.Claim{trainClaim}); err != nil {
			t.Fatal(err)
		}
		n.holds(t, "GPU-0/MIG-1 2g.20gb")
	}
}

// TestWaits: a claim waits for a MIG change that has its slices, at most until the call ends, and not for another claim.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newClaimNode(t)
		if err := n.book.Acquire(migChange, []gpu.DeviceKey{{GPU: "GPU-0"}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.AcquireClaim(ctx, trainClaim); err == nil {
			t.Error("acquired during a MIG change")
		}
		go func() {
			time.Sleep(3 * time.Second)
			if err := n.book.Release(migChange, nil); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		if err := n.AcquireClaim(t.Context(), trainClaim); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("after the change: %v, %s", err, time.Since(began))
		}
		other := trainClaim
		other.UID = "u2"
		var blocked *ledger.BlockedError
		if err := n.AcquireClaim(t.Context(), other); !errors.As(err, &blocked) {
			t.Errorf("a device of another claim: %v", err)
		}
		if err := n.AcquireClaim(ctx, trainClaim); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that has ended: %v", err)
		}
	})
}

// TestWaitsForItsTurn: a kubelet calls an agent as soon as it has registered it, a moment before the agent takes the ledger over.
func TestWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newClaimNode(t)
		next, err := ledger.Open(ledger.Deps{Path: before.path, BootID: "boot", Follow: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = next.Close() })
		n := newLedgerClaims(ledgerClaimsDeps{
			Ledger: next, Current: func() *gpu.Snapshot { return &gpu.Snapshot{} }, Maintains: migChange.Same, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
		time.AfterFunc(time.Second, func() {
			if err := next.TakeOver(); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		if err := n.AcquireClaim(t.Context(), trainClaim); err != nil || time.Since(began) != time.Second {
			t.Errorf("beside another agent: %v, %s", err, time.Since(began))
		}
		if err := before.AcquireClaim(t.Context(), trainClaim); !errors.Is(err, ledger.ErrSuperseded) {
			t.Errorf("the agent before: %v", err)
		}
	})
}

// TestWaitsForAPod: at an agent's start the kubelet's checkpoint lists pods that the API server has not named yet. A claim waits until
// such a pod is known, and is refused when it lives.
func TestWaitsForAPod(t *testing.T) {
	tests := map[string]struct {
		is       ledger.PodState
		acquired bool
		after    time.Duration
	}{
		"ended":  {is: ledger.PodEnded, acquired: true, after: 1900 * time.Millisecond},
		"living": {is: ledger.PodLiving, after: 2 * time.Second}, // the next check
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newClaimNode(t)
				look := func() {
					view := n.book.NewView()
					view.Assignments = []ledger.Assignment{{PodUID: "P1", Container: "main", Resource: "nvidia.com/gpu", Keys: []gpu.DeviceKey{{GPU: "GPU-0"}}}}
					view.Pods = []ledger.NodePod{{UID: "P1", Namespace: "ns", Name: "old", Ended: n.pod.Load() == int32(ledger.PodEnded)}}
					n.book.Reconcile(view)
				}
				look()
				began := time.Now()
				go func() {
					time.Sleep(1900 * time.Millisecond)
					n.pod.Store(int32(test.is))
					look()
				}()
				err := n.AcquireClaim(t.Context(), trainClaim)
				if waited := time.Since(began); waited != test.after || test.acquired != (err == nil) {
					t.Errorf("the answer after %s: %v", waited, err)
				}
			})
		})
	}
}
