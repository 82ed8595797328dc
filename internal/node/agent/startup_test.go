package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// startNode records what Run does.
type startNode struct {
	mu    sync.Mutex
	steps []string
	// writes and other are who writes the ledger: this agent, or another one; full is how often TakeOver fails.
	writes     bool
	other      bool
	inUse      bool
	full       int
	registered *signal.Ready
	problems   int
}

func (n *startNode) step(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps = append(n.steps, name)
}

func (n *startNode) Writes() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.writes }

func (n *startNode) HasWriter() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.writes || n.other }

func (n *startNode) TakeOver() error {
	n.step("take over")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full > 0 {
		n.full--
		return errors.New("no space left on device")
	}
	n.writes = true
	return nil
}

func (n *startNode) AwaitAdopted(context.Context) { n.step("adopt") }

func (n *startNode) InUse() bool { return n.inUse }

func (n *startNode) Registered() <-chan struct{} { return n.registered.Done() }

// TestStartUp is the order of the steps, alone and beside another agent.
func TestStartUp(t *testing.T) {
	t.Parallel()
	alone := []string{"take over", "adopt", "look", "layout", "begin", "settled", "daemons"}
	beside := []string{"look", "layout", "begin", "settled", "take over", "adopt", "look", "daemons"}
	tests := map[string]struct {
		node     *startNode
		noClaims bool
		// during changes the node a second after the start.
		during func(*startNode)
		want   []string
		took   time.Duration
	}{
		"alone":                 {node: &startNode{inUse: true}, want: alone},
		"the only one, as ever": {node: &startNode{writes: true, inUse: true}, want: alone[1:]},
		"without an API server": {node: &startNode{writes: true}, noClaims: true, want: []string{"look", "layout", "begin", "settled", "daemons"}},
		"beside another one, without DRA": {
			node: &startNode{other: true}, want: beside,
		},
		"beside another one, registered later": {
			node: &startNode{other: true, inUse: true}, during: func(n *startNode) { n.registered.Set() }, want: beside, took: time.Second + callsWithin,
		},
		"beside another one that ends": {
			node: &startNode{other: true, inUse: true}, during: func(n *startNode) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.other = false
			}, want: beside, took: time.Second,
		},
		"beside another one, not registered": {node: &startNode{other: true, inUse: true}, want: beside, took: turnWithin},
		"a full disk": {
			node: &startNode{inUse: true, full: 2}, want: slices.Concat([]string{"take over", "take over"}, alone), took: 2 * turnStep,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := test.node
				n.registered = signal.NewReady()
				scanned := make(chan struct{})
				deps := startDeps{
					Scanned: scanned, Ledger: n, Claims: n, Look: func(context.Context) { n.step("look") }, AwaitConfig: func(context.Context) { n.step("layout") },
					Begin: func(context.Context) { n.step("begin") }, Daemons: func(context.Context) { n.step("daemons") },
					Settled: signal.NewReady(), Compared: signal.NewReady(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
					Report: func(source string, problems ...gpu.Cause) { n.problems = len(problems) },
				}
				if test.noClaims {
					deps.Claims = nil
				}
				began := time.Now()
				go func() {
					<-deps.Settled.Done()
					n.step("settled")
				}()
				if test.during != nil {
					time.AfterFunc(time.Second, func() { test.during(n) })
				}
				done := make(chan struct{})
				go func() { defer close(done); startUp(t.Context(), deps) }()
				synctest.Wait()
				if len(n.steps) > 0 || deps.Settled.Is() {
					t.Errorf("before the scan it did %v", n.steps)
				}
				close(scanned)
				<-done
				synctest.Wait()
				// The step settled is taken beside the next ones.
				order := func(steps []string) []string {
					return slices.DeleteFunc(slices.Clone(steps), func(s string) bool { return s == "settled" })
				}
				if got := order(n.steps); !slices.Equal(got, order(test.want)) || !slices.Contains(n.steps, "settled") || !deps.Compared.Is() {
					t.Errorf("it did %v, want %v", n.steps, test.want)
				}
				if took := time.Since(began); (took - test.took).Abs() > turnStep {
					t.Errorf("it took %s, want %s", took, test.took)
				}
				if n.problems != 0 {
					t.Errorf("%d problems are left", n.problems)
				}
			})
		})
	}
}

// TestDriverIsServedFirst: the DRA driver may be served before this agent takes the ledger over, or the kubelet could not register it.
func TestDriverIsServedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &startNode{other: true, inUse: true, registered: signal.NewReady()}
		scanned := make(chan struct{})
		close(scanned)
		nothing := func(context.Context) {}
		deps := startDeps{
			Scanned: scanned, Ledger: n, Claims: n, Look: nothing, AwaitConfig: nothing, Begin: func(context.Context) {}, Daemons: nothing,
			Settled: signal.NewReady(), Compared: signal.NewReady(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
			Report: func(string, ...gpu.Cause) {},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); startUp(ctx, deps) }()
		time.Sleep(turnWithin / 2)
		if !deps.Settled.Is() || deps.Compared.Is() || n.Writes() {
			t.Errorf("settled %v, compared %v, writes %v", deps.Settled.Is(), deps.Compared.Is(), n.Writes())
		}
		cancel()
		<-done
	})
}
