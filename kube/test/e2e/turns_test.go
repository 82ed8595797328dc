package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// envNodes is how many nodes run side by side: a node has some 17 instances of inotify, of which the kernel allows a user 128.
const envNodes = "BERTH_E2E_NODES"

// longest are the tests that take longest. They start first, in this order, so that none of them is left for the end.
var longest = []string{
	"TestDRA", "TestInstallChart", "TestInstallGate", "TestAgentAsDaemonSet", "TestSchedulerRuns", "TestOperateDocs", "TestOperateAway",
	"TestSharing", "TestSchedulerPlaces",
}

// turns starts tests side by side, since they wait most of their time. One of them at a time is on the shared cluster, which has one node.
type turns struct {
	mu      sync.Mutex
	limit   int              // of nodes
	waiting []*turn          // in the order in which they start
	running map[string]*turn // by the name of the test
}

// turn is one test that runs, or waits for that.
type turn struct {
	test   string
	nodes  int
	shared bool
	begins chan struct{}
}

var testTurns = newTurns(5)

func newTurns(limit int) *turns { return &turns{limit: limit, running: map[string]*turn{}} }

// runSideBySide reads the limit. How many tests Go starts itself is not limited: they wait for their turns.
func (s *turns) runSideBySide() error {
	flag.Parse()
	if text := os.Getenv(envNodes); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			return fmt.Errorf("%s is %q, and not a number of nodes from 1", envNodes, text)
		}
		s.limit = limit
	}
	return flag.Set("test.parallel", "1000")
}

// onSharedCluster waits until the test may use the shared cluster, alone.
func onSharedCluster(t *testing.T) { testTurns.wait(t, &turn{nodes: 1, shared: true}) }

// onOwnCluster waits until the test may create a cluster of its own with that many nodes, without those that are only objects.
func onOwnCluster(t *testing.T, nodes int) { testTurns.wait(t, &turn{nodes: nodes}) }

func (s *turns) wait(t *testing.T, own *turn) {
	t.Helper()
	own.test, own.begins = t.Name(), make(chan struct{})
	s.enter(own)
	t.Parallel() // Returns when all tests have entered.
	s.start()
	<-own.begins
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("took %s after its turn began", time.Since(began).Round(time.Second/10)) // Go also counts the wait.
		s.end(own)
	})
}

// enter adds a test behind those that start no later.
func (s *turns) enter(own *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := slices.IndexFunc(s.waiting, func(other *turn) bool { return rank(own.test) < rank(other.test) })
	if after < 0 {
		after = len(s.waiting)
	}
	s.waiting = slices.Insert(s.waiting, after, own)
}

func rank(test string) int {
	if i := slices.Index(longest, test); i >= 0 {
		return i
	}
	return len(longest)
}

// start lets tests begin until the limit is reached.
func (s *turns) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(next *turn) bool {
		if len(s.running) > 0 && s.nodes()+next.nodes > s.limit || next.shared && s.sharedUsed() {
			return false
		}
		s.running[next.test] = next
		close(next.begins)
		return true
	})
}

func (s *turns) nodes() int {
	sum := 0
	for _, other := range s.running {
		sum += other.nodes
	}
	return sum
}

func (s *turns) sharedUsed() bool {
	for _, other := range s.running {
		if other.shared {
			return true
		}
	}
	return false
}

func (s *turns) end(own *turn) {
	s.mu.Lock()
	delete(s.running, own.test)
	s.mu.Unlock()
	s.start()
}

// check fails a test that uses a cluster without waiting for its turn.
func (s *turns) check(t testing.TB, shared bool) {
	t.Helper()
	test, isTest := t.(*testing.T)
	if !isTest {
		return
	}
	name, _, _ := strings.Cut(test.Name(), "/")
	s.mu.Lock()
	own := s.running[name]
	s.mu.Unlock()
	if own == nil || own.shared != shared {
		t.Fatalf("%s uses a cluster without a turn: it begins with onSharedCluster or onOwnCluster", name)
	}
}

// TestTurns runs tests that last as long as their names say.
func TestTurns(t *testing.T) {
	s := newTurns(2)
	at := map[string]*turn{}
	for _, name := range []string{"a shared", "b shared", "c", "TestSharing", "TestHealth shared", "large", "TestDRA"} {
		test, kind, _ := strings.Cut(name, " ")
		at[name] = &turn{test: test, nodes: 1, shared: kind != "", begins: make(chan struct{})}
		if test == "large" {
			at[name].nodes = 4
		}
		s.enter(at[name])
	}
	running := func() string {
		var begun []string
		for name, own := range at {
			select {
			case <-own.begins:
				begun = append(begun, name)
			default:
			}
		}
		slices.Sort(begun)
		return strings.Join(begun, ", ")
	}
	s.start()
	for _, step := range []struct{ end, want string }{
		{"", "TestDRA, TestSharing"},
		{"TestDRA", "TestSharing, a shared"},
		{"TestSharing", "a shared, c"},
		{"c", "a shared"},
		{"a shared", "b shared"},
		{"b shared", "TestHealth shared"},
		{"TestHealth shared", "large"},
		{"large", ""},
	} {
		if step.end != "" {
			s.end(at[step.end])
			delete(at, step.end)
		}
		if got := running(); got != step.want {
			t.Errorf("after the end of %q run %q, want %q", step.end, got, step.want)
		}
	}
}
