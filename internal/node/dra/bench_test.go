package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// realLedger is the node's ledger.
type realLedger struct{ *ledger.Ledger }

func keysOf(claim ledger.Claim) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, device := range claim.Devices {
		keys = append(keys, device.Key)
	}
	return keys
}

func (l realLedger) AcquireClaim(_ context.Context, claim ledger.Claim) error {
	return l.Acquire(claim.Holder(), keysOf(claim))
}

func (l realLedger) ResolveClaim(uid string, placed gpu.DeviceKey, device gpu.UUID) error {
	return l.Resolve(ledger.Claim{UID: uid}.Holder(), placed, device)
}

func (l realLedger) ReleaseClaim(uid string) error {
	return l.Release(ledger.Claim{UID: uid}.Holder(), nil)
}

func (l realLedger) AdoptClaims(claims []ledger.Claim) error {
	refused, err := l.AdoptAll(claims)
	for _, r := range refused {
		err = errors.Join(err, r.Err)
	}
	return err
}

func openLedger(t testing.TB, dir string) realLedger {
	t.Helper()
	l, err := ledger.Open(ledger.Deps{Path: filepath.Join(dir, "ledger"), BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return realLedger{l}
}

// TestRealLedger: the devices of a claim are in the file of the node's ledger when the kubelet has the answer, and a restart of the
// agent keeps them.
func TestRealLedger(t *testing.T) {
	n, dir := newNode(2), t.TempDir()
	claim, second := allocated("a", "u1", result("gpu", 0), result("gpu", 1)), allocated("b", "u2", result("gpu", 1))
	first := openLedger(t, dir)
	d := New(n.deps(first))
	if err := d.Adopt(); err != nil {
		t.Fatal(err)
	}
	if got := one(t.Context(), t, d, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	next := openLedger(t, dir) // The first one is not closed: it was killed.
	if len(next.Holdings()) != 2 {
		t.Fatalf("holdings %v", next.Holdings())
	}
	d = New(n.deps(next))
	if err := d.Adopt(); err != nil {
		t.Fatal(err)
	}
	refused := one(t.Context(), t, d, second)
	if refused.Err == nil {
		t.Fatal("a GPU was given to two claims")
	}
	t.Log(refused.Err)
	if err := undo(t.Context(), t, d, claim); err != nil {
		t.Fatal(err)
	}
	if got := one(t.Context(), t, d, second); got.Err != nil || len(next.Holdings()) != 1 {
		t.Fatalf("%v %v", got.Err, next.Holdings())
	}
}

// BenchmarkPrepare prepares and unprepares a claim over the real socket, with the ledger of the node in TMPDIR.
func BenchmarkPrepare(b *testing.B) {
	for _, held := range []int{0, 7} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			n, dir := newNode(8), b.TempDir()
			claims := make([]runtime.Object, 8)
			for i := range claims {
				claims[i] = allocated(name(i), "uid-"+name(i), result("gpu", i))
			}
			l := openLedger(b, dir)
			h := &host{node: n, dir: dir, client: fake.NewClientset(claims...), failures: make(chan error, 10)}
			d := New(n.deps(l))
			if err := d.Adopt(); err != nil {
				b.Fatal(err)
			}
			h.run(b, d)
			k := register(b, h.sockets()[0])
			for i := range held {
				if _, err := k.prepare(b.Context(), allocated(name(i+1), "uid-"+name(i+1))); err != nil {
					b.Fatal(err)
				}
			}
			claim := allocated(name(0), "uid-"+name(0))
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := k.prepare(b.Context(), claim); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				if err := k.unprepare(b.Context(), claim); err != nil {
					b.Fatal(err)
				}
			}
			slices.SortFunc(took, cmp.Compare[time.Duration])
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
