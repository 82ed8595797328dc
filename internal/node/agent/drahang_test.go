package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestClaimBesideAHungChange: while the driver does not return from a change of one GPU, the claims of other GPUs are prepared and
// unprepared: within a second by the log on an idle machine, of which nvidia-smi is half; the bound is 20 times that. When it returns, the
// kubelet's retry completes the prepare.
func TestClaimBesideAHungChange(t *testing.T) {
	t.Parallel()
	small := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	half := mig.Placed{Profile: "3g.40gb", Start: 4, Size: 4}
	for name, call := range map[string]string{
		"create": "CreateGpuInstanceWithPlacement", "destroy": "Destroy", "mode": "SetMigMode",
	} {
		t.Run(name, func(t *testing.T) {
			b := newClaimBench(t, "h100x8", "")
			ctx := t.Context()
			hung := b.claim("hung", b.device(0, small.String()))
			if name == "destroy" {
				// The claim needs the slices of the device that is being destroyed.
				before := b.claim("before", b.device(0, half.String()))
				if _, err := b.prepare(ctx, before); err != nil {
					t.Fatal(err)
				}
				b.inject(sim.Fault{GPU: string(b.uuid(0)), Hang: call})
				if err := b.unprepare(ctx, before); err != nil {
					t.Fatal(err)
				}
			} else {
				b.inject(sim.Fault{GPU: string(b.uuid(0)), Hang: call})
			}
			ended := make(chan error, 1)
			prepare, end := context.WithCancel(ctx)
			defer end()
			go func() {
				_, err := b.prepare(prepare, hung)
				ended <- err
			}()
			for i := 1; i < 4; i++ {
				other := b.claim("other-"+b.device(i, ""), b.device(i, small.String()))
				began := time.Now()
				names, err := b.prepare(ctx, other)
				took := time.Since(began)
				if err != nil {
					t.Fatalf("%v\n%s", err, b.picture())
				}
				t.Logf("the claim for GPU %d took %s", i, took)
				if took > 20*time.Second {
					t.Errorf("the claim for GPU %d took %s", i, took)
				}
				b.has(i, small, names)
				if i == 1 {
					if err := b.unprepare(ctx, other); err != nil {
						t.Fatal(err)
					}
					b.until("the device of the other GPU is gone", func() bool { return len(b.parts(1)) == 0 })
				}
			}
			select {
			case err := <-ended:
				t.Fatalf("the prepare on the GPU that hangs: %v", err)
			default:
			}
			// The kubelet ends its call.
			end()
			if err := <-ended; err == nil {
				t.Error("the prepare succeeded")
			}
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if _, err := b.prepare(short, hung); err == nil {
				t.Error("the retry succeeded")
			}
			b.until("the state names the call", func() bool { return strings.Contains(b.picture(), "the driver has not answered since") })
			if err := b.machine.Clear(string(b.uuid(0))); err != nil {
				t.Fatal(err)
			}
			names, err := b.prepare(ctx, hung)
			if err != nil {
				t.Fatalf("after the driver's answer: %v\n%s", err, b.picture())
			}
			b.has(0, small, names)
		})
	}
}

func (b *claimBench) inject(fault sim.Fault) {
	b.t.Helper()
	if err := b.machine.Inject(fault); err != nil {
		b.t.Fatal(err)
	}
}
