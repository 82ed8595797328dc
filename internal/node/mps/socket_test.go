package mps

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/httpserver"
)

// TestRefusals checks that the error names what is wrong with a set and the fix, and that the last valid set stays in
// force.
func TestRefusals(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	good := n.want(0)
	s.set(good)
	edit := func(change func(*Wanted)) string {
		w := good
		change(&w)
		text, err := json.Marshal(request{Wanted: []Wanted{w}})
		n.check(err)
		return string(text)
	}
	many := make([]Wanted, maxWanted+1)
	tooMany, err := json.Marshal(request{Wanted: many})
	n.check(err)
	twice, err := json.Marshal(request{Wanted: []Wanted{good, good}})
	n.check(err)
	tests := map[string]struct{ body, want string }{
		"no JSON":          {"x", "read the request"},
		"two values":       {"{} {}", "follows"},
		"an unknown field": {`{"wanted": [{"gpu": "GPU-1", "colour": "red"}]}`, "delete the supervisor's pod"},
		"a path":           {edit(func(w *Wanted) { w.GPU = "GPU-../../etc" }), "not the UUID of a whole GPU"},
		"a MIG device":     {edit(func(w *Wanted) { w.GPU = "MIG-1" }), "not on MIG devices"},
		"no GPU":           {edit(func(w *Wanted) { w.GPU = "" }), "not the UUID"},
		"percentage 0":     {edit(func(w *Wanted) { w.ActiveThreadPercentage = 0 }), "must be 1 to 100"},
		"percentage 101":   {edit(func(w *Wanted) { w.ActiveThreadPercentage = 101 }), "must be 1 to 100"},
		"memory 0":         {edit(func(w *Wanted) { w.PinnedMemoryMiB = 0 }), "-1 for no limit"},
		"memory -2":        {edit(func(w *Wanted) { w.PinnedMemoryMiB = -2 }), "-1 for no limit"},
		"replicas 0":       {edit(func(w *Wanted) { w.Replicas = 0 }), "replicas is 0"},
		"index -1":         {edit(func(w *Wanted) { w.Index = -1 }), "index is -1"},
		"twice":            {string(twice), "wanted twice"},
		"too many":         {string(tooMany), "at most 64"},
		"too large":        {`{"wanted": [` + strings.Repeat(" ", maxFile) + `]}`, "too large"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := s.client.call(t.Context(), http.MethodPut, wantedURL, []byte(tc.body), &accepted{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	if err := s.client.call(t.Context(), http.MethodGet, "/v2/status", nil,
		&Report{}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("another version: %v", err)
	}
	now, err := s.client.Status(t.Context())
	if err != nil || !allReady(good)(now) {
		t.Errorf("after the refusals %+v, %v", now, err)
	}
	s.set()
}

// TestGenerations checks that the same set is no change, and that another is one and outlives the supervisor.
func TestGenerations(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	put := func(set ...Wanted) int64 {
		t.Helper()
		body, err := json.Marshal(request{Wanted: set})
		n.check(err)
		var reply accepted
		n.check(s.client.call(t.Context(), http.MethodPut, wantedURL, body, &reply))
		return reply.Generation
	}
	a, b := n.want(0), n.want(1)
	s.ask(a, b)
	one := put(a, b)
	if again := put(b, a); again != one {
		t.Errorf("generation %d became %d without a change", one, again)
	}
	if next := put(a); next != one+1 {
		t.Errorf("generation %d became %d with a change", one, next)
	}
	s.stop()
	s = n.start(n.deps())
	s.set(a)
	if same := put(a); same != one+1 {
		t.Errorf("generation %d after a restart, want %d", same, one+1)
	}
	s.set()
}

// TestManyConnections checks that one client that opens many connections does not lock out the agent.
func TestManyConnections(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	s.ask()
	var open []net.Conn
	for range httpserver.Connections + 10 {
		conn, err := net.Dial("unix", SocketPath(n.root))
		n.check(err)
		open = append(open, conn)
	}
	s.ask()
	// The first ones are closed for the last ones.
	n.check(open[0].SetReadDeadline(time.Now().Add(timeout)))
	if _, err := open[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many: %v", err)
	}
	for _, conn := range open {
		conn.Close()
	}
}

// TestNoSupervisor checks that the error names the program that has to run.
func TestNoSupervisor(t *testing.T) {
	c := &Client{Socket: filepath.Join(t.TempDir(), "control.sock")}
	_, err := c.Status(t.Context())
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "`berth-agent mps`") || !strings.Contains(err.Error(), c.Socket) {
		t.Errorf("Status: %v", err)
	}
	if _, err := c.Set(t.Context(), nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Set: %v", err)
	}
}

// TestWatchOutlivesTheSupervisor checks that the watcher reports its daemons as Failed when the supervisor does not
// start again, not when it does, and receives the reports of the next supervisor.
func TestWatchOutlivesTheSupervisor(t *testing.T) {
	n := newNode(t)
	s := n.start(n.deps())
	want := n.want(0)
	s.set(want)

	clk := newTestClock()
	client := &Client{Socket: SocketPath(n.root), Clock: clk}
	seen := make(chan []Status, 1000)
	var generation atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Watch(ctx, func(now Report) {
			generation.Store(now.Generation)
			seen <- now.GPUs
		})
	}()
	defer func() { cancel(); <-done }()
	watcher := &running{n: n, seen: seen}
	watcher.await("Ready", allReady(want))
	accepted, err := client.Set(t.Context(), []Wanted{want}) // The same set keeps its generation.
	if err != nil || accepted != generation.Load() {
		t.Errorf("generation %d was accepted, %v; reported %d", accepted, err, generation.Load())
	}

	s.stop()
	watcher.await("Stopping", inState(Stopping))
	for _, pause := range []time.Duration{400 * time.Millisecond, 800 * time.Millisecond, time.Second} {
		clk.pass(t, pause)
	}
	watcher.await("lost", inState(Failed, "the MPS supervisor does not answer", "`berth-agent mps`"))
	if generation.Load() != NoGeneration {
		t.Errorf("generation %d without a supervisor", generation.Load())
	}
	s = n.start(n.deps())
	s.await("Ready", allReady(want))
	clk.pass(t, time.Second)
	watcher.await("Ready", allReady(want))
	if generation.Load() != accepted {
		t.Errorf("generation %d after a restart, accepted was %d", generation.Load(), accepted)
	}
	s.set()
	watcher.await("nothing left", nothing)
}
