package agent

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// beside starts another agent of the node.
func (b *claimBench) beside(instance string) *claimBench {
	b.t.Helper()
	other := *b.bench
	other.instance, other.agent = instance, nil
	next := &claimBench{bench: &other, clients: b.clients, driver: b.driver}
	next.begin()
	return next
}

// TestUpgradePrepares replaces the agent by one in another pod: the one before prepares claims until the kubelet has registered the next,
// which knows them then. One that the kubelet does not register takes over when the one before ends.
func TestUpgradePrepares(t *testing.T) {
	t.Parallel()
	b := newIdleClaimBench(t, "h100x8", pool.DefaultDriver)
	b.configure("gpus: [{allocation: {api: dra}, dynamicMIG: true}]\n")
	b.instance = "first"
	b.begin()
	b.register()
	ctx, supervisor := t.Context(), &mps.Client{Socket: mps.SocketPath(filepath.Join(b.dir, "mps"))}
	stop := b.supervise()
	if _, err := b.prepareWithMPS(ctx, b.mps(b.claim("shared", b.device(5, "")), `{}`)); err != nil {
		t.Fatal(err)
	}
	daemon, _ := b.daemonOf(supervisor, 5)
	second := b.beside("second")
	// It is about to take over once it has its sockets, or earlier.
	for i := range 5 {
		claim := b.claim(fmt.Sprint("before-", i), b.device(i, "1g.10gb at 0"))
		if _, err := b.prepare(ctx, claim); err != nil {
			t.Fatalf("the agent that the kubelet calls: %v\n%s", err, b.picture())
		}
		<-time.After(100 * time.Millisecond)
	}
	claim := b.claim("during", b.device(6, ""))
	if _, err := b.prepare(ctx, claim); err != nil {
		t.Fatalf("the agent that the kubelet calls: %v\n%s", err, b.picture())
	}
	second.register()
	second.until("the second agent writes the ledger", func() bool { return second.agent.node.ledger.Writes() })
	if err := second.unprepare(ctx, claim); err != nil {
		t.Error(err)
	}
	after := b.claim("after", b.device(6, "2g.20gb at 2"), b.device(0, "1g.10gb at 1"))
	if _, err := second.prepare(ctx, after); err != nil {
		t.Errorf("the second agent: %v\n%s", err, second.picture())
	}
	next := second.mps(second.claim("next", second.device(7, "")), `{}`)
	if _, err := second.prepareWithMPS(ctx, next); err != nil {
		t.Errorf("the second agent: %v\n%s", err, second.picture())
	}
	started, _ := second.daemonOf(supervisor, 7)
	<-time.After(time.Second) // The first agent gets the reports of the supervisor too.
	for index, want := range map[int]int{5: daemon.PID, 7: started.PID} {
		if now, _ := second.daemonOf(supervisor, index); now.PID != want || now.State != mps.Ready {
			t.Errorf("the MPS daemon of GPU %d is %+v, and was process %d", index, now, want)
		}
	}
	if err := second.unprepare(ctx, next); err != nil {
		t.Error(err)
	}
	if _, err := b.prepare(ctx, b.claim("late", b.device(7, ""))); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("the first agent still prepares: %v", err)
	}
	b.end()
	if held := len(second.agent.node.ledger.Holdings()); held != 8 {
		t.Errorf("%d devices are held, want 8\n%s", held, second.picture())
	}
	third := second.beside("third")
	if third.agent.node.ledger.Writes() {
		t.Error("an agent that the kubelet has not registered writes the ledger beside another one")
	}
	second.end()
	third.until("the third agent writes the ledger", func() bool { return third.agent.node.ledger.Writes() })
	if _, err := third.prepareWithMPS(ctx, third.claim("last", third.device(7, ""))); err != nil {
		t.Errorf("the third agent: %v\n%s", err, third.picture())
	}
	third.end()
	stop()
}
