package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// ComputeModes reads and sets the compute mode of GPUs, in NVML's numbers (nvmlDeviceGetComputeMode,
// nvmlDeviceSetComputeMode).
type ComputeModes interface {
	ComputeMode(ctx context.Context, id gpu.UUID) (int, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode int) error
}

// The compute modes of NVML that are used here. With exclusive process, a process that does not use the daemon gets an
// error instead of an unlimited GPU.
const (
	modeDefault          = 0
	modeExclusiveProcess = 3
)

// maxSocketPath is the longest path that fits into a sockaddr_un.
const maxSocketPath = 107

// Deps are the dependencies of a Supervisor.
type Deps struct {
	// Root is the directory of all files; see the package comment. It is created when missing.
	Root string
	// Socket is the path of the socket; default SocketPath(Root).
	Socket string
	// Program is the control program with the arguments that come before its own; default nvidia-cuda-mps-control.
	Program []string
	// Shim is a program, with arguments, that calls ExecDaemon with the arguments that follow. Without it daemons use
	// the supervisor's /dev/shm, which is sufficient only for simulated hardware.
	Shim        []string
	ComputeMode ComputeModes
	// Clock defaults to the real one.
	Clock clock.Clock
	Log   *slog.Logger
	// Fault, if set, is called at each step; its error fails the action.
	Fault func(Step) error
}

// Supervisor runs the wanted daemons.
type Supervisor struct {
	deps Deps
	// identity identifies the root by device and inode.
	identity string

	mu      sync.Mutex
	closing bool
	wanted  wantedFile
	wishes  map[gpu.UUID]Wanted
	status  map[gpu.UUID]Status
	keepers map[gpu.UUID]*keeper
	// undecided holds the GPUs whose wanted state is lost, until the agent sends a wanted set.
	undecided map[gpu.UUID]bool
	// changed is closed and replaced at each change of status.
	changed chan struct{}
	// spawn starts a keeper; it is set while Run runs.
	spawn func(*keeper)
}

// New returns a supervisor; Run does the work.
func New(deps Deps) (*Supervisor, error) {
	if deps.Root == "" || deps.ComputeMode == nil {
		return nil, errors.New("create MPS supervisor: Root and ComputeMode must be set")
	}
	root, err := filepath.Abs(deps.Root)
	if err != nil {
		return nil, fmt.Errorf("make MPS supervisor: %w", err)
	}
	deps.Root = root
	if path := filepath.Join(PipeDir(root, "GPU-00000000-0000-0000-0000-000000000000"), "control"); len(path) > maxSocketPath {
		return nil, fmt.Errorf("create MPS supervisor: the path of socket %s has %d characters, Linux allows %d; choose a shorter root",
			path, len(path), maxSocketPath)
	}
	if deps.Socket == "" {
		deps.Socket = SocketPath(root)
	}
	if len(deps.Program) == 0 {
		deps.Program = []string{"nvidia-cuda-mps-control"}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Fault == nil {
		deps.Fault = func(Step) error { return nil }
	}
	return &Supervisor{
		deps: deps, changed: make(chan struct{}),
		wishes: map[gpu.UUID]Wanted{}, status: map[gpu.UUID]Status{}, keepers: map[gpu.UUID]*keeper{},
	}, nil
}

// Run runs the daemons until ctx ends; then it quits them, restores the compute modes and returns nil. It may be called
// once.
func (s *Supervisor) Run(ctx context.Context) error {
	unlock, err := s.prepare()
	if err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	defer unlock()
	// 1. Read the wanted set and list what exists.
	if err := s.load(); err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	there, err := listGPUs(s.deps.Root)
	if err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	// 2. Start one keeper per GPU that has, or should have, a daemon.
	keeping, stop := context.WithCancel(ctx)
	defer stop()
	var keepers sync.WaitGroup
	s.mu.Lock()
	s.spawn = func(k *keeper) { keepers.Go(func() { k.run(keeping) }) }
	for _, id := range there {
		s.keep(id)
	}
	for _, want := range s.wanted.Wanted {
		s.keep(want.GPU)
	}
	s.mu.Unlock()
	// 3. Serve the socket until ctx ends.
	err = s.serve(ctx, func() {
		// 4. Shut down: start no new keepers; the existing ones stop their daemons while the agent still receives
		//    reports.
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		stop()
		keepers.Wait()
	})
	if err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	return nil
}

// prepare creates the root and locks it for this supervisor.
func (s *Supervisor) prepare() (unlock func(), err error) {
	// Servers run as their clients' user and need to traverse the directory, so others may enter it but not list it.
	if err := os.MkdirAll(s.deps.Root, 0o711); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.deps.Root, 0o711); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(s.deps.Root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := s.lock(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w: another supervisor runs the daemons of this node; stop it first, or configure another root",
			file.Name(), err)
	}
	var at unix.Stat_t
	if err := unix.Stat(s.deps.Root, &at); err != nil {
		file.Close()
		return nil, fmt.Errorf("look at %s: %w", s.deps.Root, err)
	}
	s.identity = fmt.Sprintf("%x:%x", at.Dev, at.Ino)
	// Remove the files of a writer that was killed.
	half, _ := filepath.Glob(filepath.Join(s.deps.Root, "."+wantedName+"*"))
	for _, path := range half {
		_ = os.Remove(path)
	}
	return func() { file.Close() }, nil
}

// lock acquires the lock. A supervisor that was killed while it started a program leaves it locked until that program
// runs, so lock retries for one second.
func (s *Supervisor) lock(file *os.File) error {
	const tries, pause = 20, 50 * time.Millisecond
	for try := 1; ; try++ {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || try == tries || !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		<-s.deps.Clock.NewTimer(pause).C()
	}
}

func (s *Supervisor) mark(id gpu.UUID) string { return s.identity + ":" + string(id) }

func (s *Supervisor) control(id gpu.UUID) control {
	return control{program: s.deps.Program, pipe: PipeDir(s.deps.Root, id), log: logDir(s.deps.Root, id)}
}

// load reads the wanted set. If it is lost, the set is rebuilt from the journals; a GPU whose journal is lost too is
// left unchanged until the agent sends a wanted set.
func (s *Supervisor) load() error {
	file, read := wantedIn(s.deps.Root).Load()
	switch {
	case read.State == statefile.Present:
		s.accept(file)
		return nil
	case read.State == statefile.Unreadable:
		return read.Err
	case read.Lost():
		s.deps.Log.Error("Wanted set of MPS daemons is lost; daemons continue to run until the agent sends a wanted set",
			"code", read.Code(), "error", read.Err)
	}
	ids, err := listGPUs(s.deps.Root)
	if err != nil {
		return err
	}
	undecided := map[gpu.UUID]bool{}
	for _, id := range ids {
		switch journal, read := recordOf(s.deps.Root, id).Read(); {
		case read.State == statefile.Present:
			file.Wanted = append(file.Wanted, journal.Wanted)
		case read.Lost():
			undecided[id] = true
		}
	}
	s.accept(file)
	s.undecided = undecided
	return nil
}

func (s *Supervisor) accept(file wantedFile) {
	s.wanted = file
	s.wishes, s.undecided = map[gpu.UUID]Wanted{}, nil
	for _, want := range file.Wanted {
		s.wishes[want.GPU] = want
	}
}

var errNotServing = errors.New("the supervisor is shutting down")

// set replaces the wanted set and returns its generation. The set is on disk when it returns.
func (s *Supervisor) set(set []Wanted) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return 0, errNotServing
	}
	if slices.Equal(set, s.wanted.Wanted) && s.wanted.Generation > 0 {
		return s.wanted.Generation, nil
	}
	file := wantedFile{Generation: s.wanted.Generation + 1, Wanted: set}
	if err := wantedIn(s.deps.Root).Save(file); err != nil {
		return 0, err
	}
	if err := s.deps.Fault(WantedWritten); err != nil {
		return 0, err
	}
	before := s.wishes
	s.accept(file)
	s.deps.Log.Info("Accepted wanted set of MPS daemons", "generation", file.Generation, "count", len(set))
	for _, want := range set {
		s.keep(want.GPU)
	}
	for _, k := range s.keepers {
		want, is := s.wishes[k.gpu]
		was, had := before[k.gpu]
		switch {
		case !is:
			s.updateStatus(k.gpu, func(st *Status) { st.State, st.Reason = Stopping, "it is no longer wanted" })
		case !had || was.Limits != want.Limits:
			s.updateStatus(k.gpu, func(st *Status) { st.State, st.Reason = Starting, "its wanted state has changed" })
		}
		k.wake.Set()
	}
	return file.Generation, nil
}

// keep starts the keeper of a GPU unless it runs. The caller holds the lock.
func (s *Supervisor) keep(id gpu.UUID) {
	if s.keepers[id] != nil {
		return
	}
	k := &keeper{Supervisor: s, gpu: id, wake: signal.New()}
	s.keepers[id] = k
	state := Starting
	if _, ok := s.wishes[id]; !ok && !s.undecided[id] {
		state = Stopping
	}
	s.updateStatus(id, func(st *Status) { st.State = state })
	s.spawn(k)
}

// retire ends a keeper that has nothing left to do, unless its daemon is wanted again.
func (s *Supervisor) retire(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.wishes[id]; ok && !s.closing {
		return false
	}
	delete(s.keepers, id)
	delete(s.status, id)
	s.broadcast()
	return true
}

// wantedFor returns the wanted daemon of a GPU, or nil.
func (s *Supervisor) wantedFor(id gpu.UUID) *Wanted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if want, ok := s.wishes[id]; ok {
		return &want
	}
	return nil
}

// isUndecided reports whether the wanted state of a GPU is unknown.
func (s *Supervisor) isUndecided(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undecided[id]
}

// updateStatus changes a status. The caller holds the lock.
func (s *Supervisor) updateStatus(id gpu.UUID, edit func(*Status)) {
	old, known := s.status[id]
	now := old
	now.GPU = id
	edit(&now)
	if known && now == old {
		return
	}
	if now.State != old.State {
		now.Since = s.deps.Clock.Now()
	}
	s.status[id] = now
	s.broadcast()
}

func (s *Supervisor) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// report returns all statuses, sorted by UUID, and a channel that is closed when a newer report exists.
func (s *Supervisor) report() (Report, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{Generation: s.wanted.Generation, GPUs: make([]Status, 0, len(s.status))}
	for _, st := range s.status {
		r.GPUs = append(r.GPUs, st)
	}
	slices.SortFunc(r.GPUs, func(a, b Status) int { return strings.Compare(string(a.GPU), string(b.GPU)) })
	return r, s.changed
}

// backoff returns the pause after a number of consecutive failures.
func backoff(failures int) time.Duration {
	return min(time.Second<<min(max(failures-1, 0), 6), time.Minute)
}
