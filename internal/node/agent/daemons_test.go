package agent

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// slowSupervisor is an MPS supervisor whose daemons start and end at once, and that may take long to take a set.
type slowSupervisor struct {
	mu      sync.Mutex
	wanted  []mps.Wanted
	busy    int // sets that are being taken
	overlap bool
	// hold makes the next set wait until it is closed; nil for none.
	hold    chan struct{}
	holding chan struct{}
	// reported is closed when a daemon was reported as ready; with it, an answer to a question is one from before that,
	// and arrives after it. Nil answers and reports the present.
	reported chan struct{}
}

func startSupervisor(t *testing.T, root string) *slowSupervisor {
	t.Helper()
	s := &slowSupervisor{holding: make(chan struct{}, 1)}
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", mps.SocketPath(root))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: s}}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return s
}

func (s *slowSupervisor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		s.take(r)
		_, _ = w.Write([]byte("{}"))
		return
	}
	watch := filepath.Base(r.URL.Path) == "watch"
	state := mps.Ready
	if s.reported != nil && watch {
		for len(s.statuses(state)) == 0 && r.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	} else if s.reported != nil {
		state = mps.Starting
		<-s.reported
		time.Sleep(50 * time.Millisecond) // The report arrives first.
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"gpus": s.statuses(state)})
	if watch {
		_ = http.NewResponseController(w).Flush()
		if s.reported != nil {
			close(s.reported)
		}
		<-r.Context().Done()
	}
}

func (s *slowSupervisor) statuses(state mps.State) []mps.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	statuses := []mps.Status{}
	for _, one := range s.wanted {
		statuses = append(statuses, mps.Status{GPU: one.GPU, State: state})
	}
	return statuses
}

// take makes a set the wanted one when it has waited, as a supervisor does that was busy.
func (s *slowSupervisor) take(r *http.Request) {
	var request struct{ Wanted []mps.Wanted }
	_ = json.NewDecoder(r.Body).Decode(&request)
	s.mu.Lock()
	s.busy++
	s.overlap = s.overlap || s.busy > 1
	hold := s.hold
	s.hold = nil
	s.mu.Unlock()
	if hold != nil {
		poke(s.holding)
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.wanted = request.Wanted
}

func (s *slowSupervisor) wants(card gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.wanted, func(w mps.Wanted) bool { return w.GPU == card })
}

// TestOldAnswerOfTheSupervisor: an answer that was given before the daemon was reported as ready, and arrives after that
// report, changes nothing. No further report follows that would correct it.
func TestOldAnswerOfTheSupervisor(t *testing.T) {
	b := newIdleBench(t, "t4x4")
	supervisor := startSupervisor(t, filepath.Join(b.dir, "mps"))
	supervisor.reported = make(chan struct{})
	b.configure("standalone: true\ngpus: [{select: {index: [2]}, sharing: {mode: mps, replicas: 3, resourceName: nvidia.com/gpu.mps}}]\n")
	b.agent = b.start()
	<-supervisor.reported
	time.Sleep(200 * time.Millisecond) // The answer arrives.
	b.awaitOf("nvidia.com/gpu.mps", healthy(3))
}

// TestOneSenderOfWantedDaemons: a set that was sent before a GPU was quiesced, and is slow, must not start the GPU's daemon
// again afterwards.
func TestOneSenderOfWantedDaemons(t *testing.T) {
	b := newIdleBench(t, "t4x4")
	supervisor := startSupervisor(t, filepath.Join(b.dir, "mps"))
	b.configure("standalone: true\ngpus: [{select: {index: [2]}, sharing: {mode: mps, replicas: 3, resourceName: nvidia.com/gpu.mps}}]\n")
	b.agent = b.start()
	b.awaitOf("nvidia.com/gpu.mps", healthy(3))
	card := b.uuid(2)

	hold := make(chan struct{})
	supervisor.mu.Lock()
	supervisor.hold = hold
	supervisor.mu.Unlock()
	b.agent.sharing.poke() // Something changed: the set is sent again, and takes long.
	<-supervisor.holding
	quiesced := make(chan error, 1)
	go func() { quiesced <- b.agent.quiesce(t.Context(), card) }()
	awaitTrue(t, "the wish to end the daemon", func() bool {
		b.agent.sharing.mu.Lock()
		defer b.agent.sharing.mu.Unlock()
		return b.agent.sharing.quiesced[card]
	})
	select {
	case err := <-quiesced: // Done before the slow set: that one must not undo it.
		quiesced <- err
	case <-time.After(300 * time.Millisecond):
	}
	close(hold)
	if err := <-quiesced; err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "the end of what is sent", func() bool {
		supervisor.mu.Lock()
		defer supervisor.mu.Unlock()
		return supervisor.busy == 0
	})
	if supervisor.wants(card) {
		t.Error("the daemon of a quiesced GPU is wanted again")
	}
	if supervisor.overlap {
		t.Error("two sets were sent at the same time")
	}
	if units := offer.MPSUnits(b.agent.allocatable.Units()); len(units) != 1 {
		t.Errorf("%d units of MPS, want 1: the test shows nothing", len(units))
	}
}
