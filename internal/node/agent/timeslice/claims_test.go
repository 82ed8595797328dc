package timeslice_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// ofClaim is a claim's holding on a whole GPU.
func ofClaim(id gpu.UUID, slice string) gpu.Holding {
	return gpu.Holding{Key: gpu.DeviceKey{GPU: id}, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "c"}, TimeSlice: slice}
}

// hold makes holdings those of the ledger.
func (n *node) hold(holdings ...gpu.Holding) {
	n.mu.Lock()
	n.holdings = holdings
	n.mu.Unlock()
	n.claims.Set()
	synctest.Wait()
}

// TestClaim: a GPU has the time slice of its claim until the claim is released, and other changes of the ledger cause no pass.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, end := n.run()
		defer end()
		n.wantCounts("start", n.passes, 0)
		n.hold(ofClaim(gpuA, "long"))
		n.wantCounts("a claim", 1, 1)
		n.want("long", unset)
		n.wantNoted(gpuA)
		pod := gpu.Holding{Key: gpu.DeviceKey{GPU: gpuB}, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: "p"}}
		part := ofClaim(gpuB, "short")
		part.Key.MIG = "MIG-b"
		n.hold(ofClaim(gpuA, "long"), pod)
		n.hold(ofClaim(gpuA, "long"), part)
		n.hold(ofClaim(gpuA, "long"))
		n.wantCounts("holders without a time slice", 0, 0)
		n.hold(ofClaim(gpuA, "default"))
		n.wantCounts("the next claim", 1, 1)
		n.want(unset, unset)
		n.hold(ofClaim(gpuA, "short"), ofClaim(gpuB, "medium"))
		n.hold(ofClaim(gpuB, "medium"))
		n.want(unset, "medium")
		n.hold()
		n.want(unset, unset)
		n.wantNoted()
	})
}

// TestClaimOfTimeSlicedGPU: the claim decides about a GPU whose units want another time slice.
func TestClaimOfTimeSlicedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, end := n.run()
		defer end()
		n.settle(sliced(gpuA, "short"), sliced(gpuB, "short"))
		n.hold(ofClaim(gpuA, "long"), ofClaim(gpuB, "default"))
		n.want("long", unset)
		n.hold()
		n.want("short", "short")
	})
}

// TestAdoptedClaim: while it is not known what a claim wants, its GPU keeps the time slice, also in the next agent.
func TestAdoptedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, end := n.run()
		n.hold(ofClaim(gpuA, "long"))
		n.hold(ofClaim(gpuA, ""), ofClaim(gpuB, ""))
		n.want("long", unset)
		end()
		n.mu.Lock()
		n.slices[gpuA] = unset // The driver loses the setting.
		n.mu.Unlock()
		_, end = n.run()
		defer end()
		n.want("long", unset)
		n.hold()
		n.want(unset, unset)
	})
}

// TestKilledWithClaim: an agent that is killed while it sets the time slice of a claim leaves it to the next agent, which sets it, or the
// default when the claim was released before that.
func TestKilledWithClaim(t *testing.T) {
	for _, step := range []timeslice.Step{timeslice.Begun, timeslice.Noted, timeslice.Set} {
		for _, released := range []bool{false, true} {
			t.Run(string(step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNode(t)
					n.holdings = []gpu.Holding{ofClaim(gpuA, "short")}
					n.dieAt(step)
					want := "short"
					if released {
						n.holdings, want = nil, unset
					}
					_, end := n.run()
					defer end()
					n.want(want, unset)
				})
			})
		}
	}
}

// TestSuperseded: an agent that another one has superseded sets nothing until it leads again.
func TestSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, end := n.run()
		defer end()
		n.hold(ofClaim(gpuA, "long"))
		n.want("long", unset)
		n.superseded.Store(true)
		n.hold(ofClaim(gpuB, "short"))
		time.Sleep(time.Minute)
		synctest.Wait()
		n.want("long", unset)
		n.superseded.Store(false)
		n.hold(ofClaim(gpuB, "short"))
		n.want(unset, "short")
	})
}

// TestAwait: the call returns once the GPU has the time slice, at once when it has it already, and with nvidia-smi's error at the end of
// its context.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		s, end := n.run()
		defer end()
		n.mu.Lock()
		n.failing[gpuA] = true
		n.mu.Unlock()
		await := func(id gpu.UUID, slice string, within time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			err := s.Await(ctx, id, slice)
			return time.Since(began), err
		}
		if took, err := await(gpuB, "long", time.Second); err == nil || !strings.Contains(err.Error(), "GPU GPU-b could not be set to long: it was not set yet") || took != time.Second {
			t.Errorf("without a claim: %v after %s", err, took)
		}
		n.hold(ofClaim(gpuA, "short"), ofClaim(gpuB, "long"))
		if took, err := await(gpuB, "long", time.Second); err != nil || took != 0 {
			t.Errorf("the other GPU: %v after %s", err, took)
		}
		if took, err := await(gpuA, "short", 3*time.Second); err == nil || !strings.Contains(err.Error(), "GPU GPU-a could not be set to short: Unable to set timeslice") || took != 3*time.Second {
			t.Errorf("while nvidia-smi fails: %v after %s", err, took)
		}
		n.mu.Lock()
		n.failing[gpuA] = false
		n.mu.Unlock()
		if took, err := await(gpuA, "short", time.Minute); err != nil || took > 5*time.Second {
			t.Errorf("after the repair: %v after %s", err, took)
		}
		if took, err := await("GPU-of-another-vendor", "short", time.Minute); err == nil || !strings.Contains(err.Error(), "has no time slices") || took != 0 {
			t.Errorf("a GPU without time slices: %v after %s", err, took)
		}
	})
}

// TestUnitsOfClaimedGPU: what is unknown of the units does not hide what the claim wants.
func TestUnitsOfClaimedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, end := n.run()
		defer end()
		unknown := sliced(gpuA, "")
		unknown.Use.Mode = offer.Unknown
		n.settle(unknown)
		n.hold(ofClaim(gpuA, "medium"))
		n.want("medium", unset)
	})
}
