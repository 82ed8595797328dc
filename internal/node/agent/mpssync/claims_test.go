package mpssync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
)

var quarter = gpu.MPSLimits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25}

// ofClaim is a claim's holding on a whole GPU, with an empty time slice when it is not known what the claim wants.
func ofClaim(id gpu.UUID, slice string, limits gpu.MPSLimits) gpu.Holding {
	return gpu.Holding{Key: gpu.DeviceKey{GPU: id}, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "c"}, TimeSlice: slice, MPS: limits}
}

// byDRA is a GPU that claims get.
func byDRA(id gpu.UUID) offer.Unit {
	return offer.Unit{Key: gpu.DeviceKey{GPU: id}, Use: offer.Use{API: offer.DRA, Resource: "nvidia.com/gpu"}}
}

// hold makes holdings those of the ledger.
func (n *node) hold(holdings ...gpu.Holding) {
	n.mu.Lock()
	n.holdings = holdings
	n.mu.Unlock()
	n.ledger.Set()
	synctest.Wait()
}

// await calls Await, which must take this long and return an error with a text; empty for nil.
func (n *node) await(id gpu.UUID, limits gpu.MPSLimits, took time.Duration, want string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	err := n.Await(ctx, id, limits)
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || time.Since(began) != took {
		n.t.Errorf("Await(%s) = %v after %s, want %q after %s", id, err, time.Since(began), want, took)
	}
}

// TestClaim: the daemon of a claim runs as long as the claim has the GPU, and other holders cause no set.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), replicas(gpuB))
		n.start()
		n.wantCounts("start", 1, 2)
		n.hold(ofClaim(gpuA, "default", quarter))
		n.wantCounts("a claim", 1, 2)
		n.await(gpuA, quarter, 0, "")
		n.wantCounts("its prepare", 0, 0)
		status, _ := n.Status(gpuA)
		if status.Limits != (mps.Limits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, MultiUser: true}) || !n.supervisor.wants(gpuB) {
			t.Errorf("the daemon has the limits %+v; the replicas' daemon runs: %v", status.Limits, n.supervisor.wants(gpuB))
		}
		part := ofClaim(gpuB, "", gpu.MPSLimits{})
		part.Key.MIG = "MIG-b"
		pod := gpu.Holding{Key: gpu.DeviceKey{GPU: gpuB, Share: 1}, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: "p"}}
		n.hold(ofClaim(gpuA, "default", quarter), part, pod)
		n.wantCounts("other holders", 0, 0)
		n.hold()
		n.wantCounts("the end of the claim", 1, 2)
		if n.supervisor.wants(gpuA) || !n.supervisor.wants(gpuB) {
			t.Error("the wrong daemon has ended")
		}
		n.hold(ofClaim(gpuA, "long", gpu.MPSLimits{}))
		n.wantCounts("a claim without MPS", 0, 0)
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
	})
}

// TestAwaitEnd: a GPU whose daemon is ending is ready for neither a claim without MPS nor the device plugin, until it has ended.
func TestAwaitEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), byDRA(gpuB))
		n.start()
		n.hold(ofClaim(gpuA, "default", quarter))
		if why := n.Ending(gpuA); why != "" {
			t.Errorf("the daemon of the claim is ending: %s", why)
		}
		n.supervisor.change(func() { n.supervisor.keeps[gpuA] = true })
		n.hold(ofClaim(gpuA, "default", gpu.MPSLimits{}), ofClaim(gpuB, "default", gpu.MPSLimits{}))
		if why := n.Ending(gpuA); why != "the MPS daemon of an earlier use has not ended yet" {
			t.Errorf("Ending = %q", why)
		}
		n.await(gpuA, gpu.MPSLimits{}, 10*time.Second, "the MPS daemon of an earlier holder of GPU GPU-a has not ended yet")
		n.await(gpuB, gpu.MPSLimits{}, 0, "")
		time.AfterFunc(1990*time.Millisecond, func() {
			n.supervisor.mu.Lock()
			defer n.supervisor.mu.Unlock()
			delete(n.supervisor.keeps, gpuA)
		})
		n.await(gpuA, gpu.MPSLimits{}, 2*time.Second, "")
		n.supervisor.change(func() {})
		if why := n.Ending(gpuA); why != "" {
			t.Errorf("Ending = %q", why)
		}
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
	})
}

// TestAwaitAfterUnreportedSet: the daemon of a claim that ended before the first report of it is waited for too.
func TestAwaitAfterUnreportedSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA))
		n.start()
		n.supervisor.mu.Lock()
		n.supervisor.watch = nil // No report arrives.
		n.supervisor.keeps[gpuA] = true
		n.supervisor.mu.Unlock()
		n.hold(ofClaim(gpuA, "default", quarter))
		n.hold()
		n.await(gpuA, gpu.MPSLimits{}, 10*time.Second, "has not ended yet")
		n.supervisor.mu.Lock()
		delete(n.supervisor.keeps, gpuA)
		n.supervisor.mu.Unlock()
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
		asked := n.supervisor.asked
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
		if n.supervisor.asked != asked {
			t.Error("the supervisor was asked about a GPU without a daemon")
		}
	})
}

// TestAwaitAfterRestart: a daemon that an agent before has started is waited for too, although this one has never wanted it.
func TestAwaitAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), byDRA(gpuB))
		n.supervisor.wanted = []mps.Wanted{{GPU: gpuA, Replicas: 1, Limits: mps.Limits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, MultiUser: true}}}
		n.supervisor.generation, n.supervisor.keeps[gpuA] = 4, true
		n.start()
		n.await(gpuA, gpu.MPSLimits{}, 10*time.Second, "has not ended yet")
		n.await(gpuB, gpu.MPSLimits{}, 0, "")
		n.supervisor.mu.Lock()
		delete(n.supervisor.keeps, gpuA)
		n.supervisor.mu.Unlock()
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
	})
}

// TestAwaitNextClaim: a claim that follows one with other limits gets its own, also when the daemon before looks ready.
func TestAwaitNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA))
		n.start()
		n.hold(ofClaim(gpuA, "default", quarter))
		half := gpu.MPSLimits{PinnedMemoryMiB: mps.NoLimit, ActiveThreadPercentage: 50}
		n.mu.Lock()
		n.holdings = []gpu.Holding{ofClaim(gpuA, "default", half)} // The syncer has not seen the change yet.
		n.mu.Unlock()
		n.await(gpuA, half, 0, "")
		n.supervisor.mu.Lock()
		defer n.supervisor.mu.Unlock()
		if got := n.supervisor.wanted[0].ActiveThreadPercentage; got != 50 {
			t.Errorf("the daemon has %d %%", got)
		}
	})
}

// TestAwaitFails: the reason why a claim has no daemon.
func TestAwaitFails(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*node)
		id      gpu.UUID
		took    time.Duration
		want    string
	}{
		"a daemon that fails": {
			prepare: func(n *node) { n.supervisor.change(func() { n.supervisor.failed[gpuA] = true }) },
			id:      gpuA, took: 10 * time.Second, want: "the MPS daemon of GPU GPU-a is Failed: no memory",
		},
		"no supervisor": {
			prepare: func(n *node) { n.supervisor.change(func() { n.supervisor.gone = mps.ErrUnavailable }) },
			id:      gpuA, took: 10 * time.Second, want: "GPU GPU-a has no MPS daemon: " + mps.ErrUnavailable.Error(),
		},
		"a quiesced GPU": {
			prepare: func(n *node) { _ = n.Quiesce(n.t.Context(), mpssync.ForReset, gpuA) },
			id:      gpuA, took: 10 * time.Second, want: "the MPS daemon of GPU GPU-a is not started yet",
		},
		"a GPU of another vendor": {prepare: func(*node) {}, id: "GPU-c", want: "GPU GPU-c cannot be shared by MPS"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, byDRA(gpuA))
				n.start()
				test.prepare(n)
				n.hold(ofClaim(test.id, "default", quarter))
				n.await(test.id, quarter, test.took, test.want)
			})
		})
	}
}

// TestAwaitWithoutSupervisor: a GPU on which a daemon ran is not ready while no supervisor says that it has ended; another one is.
func TestAwaitWithoutSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), byDRA(gpuB))
		n.start()
		n.hold(ofClaim(gpuA, "default", quarter))
		n.supervisor.change(func() { n.supervisor.gone = mps.ErrUnavailable })
		n.hold()
		n.await(gpuA, gpu.MPSLimits{}, 10*time.Second, "an MPS daemon of an earlier holder may still run on GPU GPU-a: "+mps.ErrUnavailable.Error())
		n.await(gpuB, gpu.MPSLimits{}, 0, "")
		n.supervisor.change(func() { n.supervisor.gone = nil })
		n.await(gpuA, gpu.MPSLimits{}, 0, "")
	})
}

// TestUnknownClaim: while it is not known what a claim wants, a daemon on its GPU continues to run with its limits, also in the next
// agent; on a node without a supervisor that is no problem.
func TestUnknownClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), byDRA(gpuB))
		n.supervisor.wanted = []mps.Wanted{{GPU: gpuA, Replicas: 1, Limits: mps.Limits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, MultiUser: true}}}
		n.supervisor.generation = 4
		n.holdings = []gpu.Holding{ofClaim(gpuA, "", gpu.MPSLimits{}), ofClaim(gpuB, "", gpu.MPSLimits{})}
		n.start()
		if !n.supervisor.wants(gpuA) || n.supervisor.wants(gpuB) {
			t.Errorf("the wanted set is %+v", n.supervisor.wanted)
		}
		if status, _ := n.Status(gpuA); status.Limits.ActiveThreadPercentage != 25 {
			t.Errorf("the daemon has the limits %+v", status.Limits)
		}
		n.hold()
		if n.supervisor.wants(gpuA) {
			t.Error("the daemon runs without the claim")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA))
		n.supervisor.gone = fmt.Errorf("%w at control.sock", mps.ErrUnavailable)
		n.holdings = []gpu.Holding{ofClaim(gpuA, "", gpu.MPSLimits{})}
		n.start()
		time.Sleep(time.Minute)
		if got := n.problem("mps"); got != "" || n.supervisor.sets != 0 {
			t.Errorf("the problem is %q after %d sets", got, n.supervisor.sets)
		}
		n.hold(ofClaim(gpuA, "", gpu.MPSLimits{}), ofClaim(gpuB, "default", quarter))
		if got := n.problem("mps"); !strings.Contains(got, "MPS_SUPERVISOR") {
			t.Errorf("with a claim that wants a daemon the problem is %q", got)
		}
		n.hold(ofClaim(gpuA, "", gpu.MPSLimits{}))
		if got := n.problem("mps"); got != "" {
			t.Errorf("when that claim has ended the problem is %q", got)
		}
		// A supervisor that adopted the daemon appears.
		n.supervisor.change(func() {
			n.supervisor.gone, n.supervisor.generation = nil, 4
			n.supervisor.wanted = []mps.Wanted{{GPU: gpuA, Replicas: 1, Limits: mps.Limits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, MultiUser: true}}}
		})
		if !n.supervisor.wants(gpuA) {
			t.Error("the daemon was ended under its clients")
		}
	})
}

// TestSuperseded: an agent that another one has superseded sends no set, also not in answer to that one's, until it leads again.
func TestSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA), byDRA(gpuB))
		n.start()
		n.hold(ofClaim(gpuA, "default", quarter))
		n.wantCounts("start and a claim", 2, 3)
		n.superseded.Store(true)
		next := []mps.Wanted{{GPU: gpuB, Replicas: 1, Limits: mps.Limits{PinnedMemoryMiB: mps.NoLimit, ActiveThreadPercentage: 100}}}
		n.supervisor.change(func() { n.supervisor.wanted, n.supervisor.generation = next, 9 })
		n.hold(ofClaim(gpuA, "default", gpu.MPSLimits{}))
		n.settle(byDRA(gpuB))
		if n.supervisor.sets != 0 || !n.supervisor.wants(gpuB) {
			t.Errorf("it sent %d sets", n.supervisor.sets)
		}
		n.superseded.Store(false)
		n.hold(ofClaim(gpuA, "default", gpu.MPSLimits{}))
		if n.supervisor.sets != 1 || n.supervisor.wants(gpuB) {
			t.Errorf("an agent that leads again sent %d sets", n.supervisor.sets)
		}
	})
}

// TestQuiesceEndingDaemon: Quiesce waits for a daemon that nothing wants any more.
func TestQuiesceEndingDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, byDRA(gpuA))
		n.start()
		n.hold(ofClaim(gpuA, "default", quarter))
		n.supervisor.change(func() { n.supervisor.keeps[gpuA] = true })
		n.hold()
		time.AfterFunc(2990*time.Millisecond, func() {
			n.supervisor.mu.Lock()
			defer n.supervisor.mu.Unlock()
			delete(n.supervisor.keeps, gpuA)
		})
		began := time.Now()
		if err := n.Quiesce(t.Context(), mpssync.ForMIG, gpuA); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
