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
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// ComputeModes reads and sets the compute mode of GPUs, in NVML's numbers (nvmlDeviceGetComputeMode,
// nvmlDeviceSetComputeMode).
type ComputeModes interface {
	ComputeMode(ctx context.Context, id gpu.UUID) (int, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode int) error
}

// The compute modes of NVML that are used here. With exclusive process, a process that misses
// the daemon gets an error instead of an unlimited GPU.
const (
	modeDefault          = 0
	modeExclusiveProcess = 3
)

// maxSocketPath is what fits into a sockaddr_un.
const maxSocketPath = 107

// Deps are what a Supervisor is made of.
type Deps struct {
	// Root is the folder of everything; see the package comment. It is made when it is not there.
	Root string
	// Socket is the path of the socket; default SocketPath(Root).
	Socket string
	// Program is the control program with the arguments that come before its own; default nvidia-cuda-mps-control.
	Program []string
	// Shim is a program, with arguments, that does ExecDaemon with the arguments that follow. Without it
	// daemons have the supervisor's /dev/shm, which is enough only for simulated hardware.
	Shim        []string
	ComputeMode ComputeModes
	// Clock defaults to the real one.
	Clock clock.Clock
	Log   *slog.Logger
	// Fault, if set, is called at each step; an error fails what is being done.
	Fault func(Step) error
}

// Supervisor keeps the daemons that are wanted.
type Supervisor struct {
	deps Deps
	// identity names the root by device and inode.
	identity string

	mu      sync.Mutex
	closing bool
	wanted  wantedFile
	wishes  map[gpu.UUID]Wanted
	status  map[gpu.UUID]Status
	keepers map[gpu.UUID]*keeper
	// undecided are the GPUs of which it is lost what was wanted, until the agent says it.
	undecided map[gpu.UUID]bool
	// changed is closed, and replaced, at each change of status.
	changed chan struct{}
	// spawn starts a keeper; it is set while Run runs.
	spawn func(*keeper)
}

// New makes a supervisor; Run does the work.
func New(deps Deps) (*Supervisor, error) {
	if deps.Root == "" || deps.ComputeMode == nil {
		return nil, errors.New("make MPS supervisor: it needs a root folder and a way to set compute modes")
	}
	root, err := filepath.Abs(deps.Root)
	if err != nil {
		return nil, fmt.Errorf("make MPS supervisor: %w", err)
	}
	deps.Root = root
	if path := filepath.Join(PipeDir(root, "GPU-00000000-0000-0000-0000-000000000000"), "control"); len(path) > maxSocketPath {
		return nil, fmt.Errorf("make MPS supervisor: sockets such as %s have %d characters, and Linux takes %d; choose a shorter root", path, len(path), maxSocketPath)
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

// Run keeps the daemons until ctx ends; then it quits them, restores the compute modes and returns nil. It
// may be called once.
func (s *Supervisor) Run(ctx context.Context) error {
	unlock, err := s.prepare()
	if err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	defer unlock()
	// 1. What is wanted, and what is there.
	if err := s.load(); err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	there, err := cards(s.deps.Root)
	if err != nil {
		return fmt.Errorf("run MPS supervisor: %w", err)
	}
	// 2. One keeper per GPU that has, or is to have, a daemon.
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
	// 3. The socket, until ctx ends.
	err = s.serve(ctx, func() {
		// 4. The end: no new keepers, and those that are there take their daemons down, in sight of the agent.
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

// prepare makes the root ours, and only ours.
func (s *Supervisor) prepare() (unlock func(), err error) {
	// Servers run as their clients' user and have to get through, so others may enter but not list.
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
		return nil, fmt.Errorf("lock %s: %w: another supervisor keeps the daemons of this node; end it first, or give this one another root", file.Name(), err)
	}
	var at unix.Stat_t
	if err := unix.Stat(s.deps.Root, &at); err != nil {
		file.Close()
		return nil, fmt.Errorf("look at %s: %w", s.deps.Root, err)
	}
	s.identity = fmt.Sprintf("%x:%x", at.Dev, at.Ino)
	// What a writer that was killed has left.
	half, _ := filepath.Glob(filepath.Join(s.deps.Root, "."+wantedName+"*"))
	for _, path := range half {
		_ = os.Remove(path)
	}
	return func() { file.Close() }, nil
}

// lock takes the lock. One that was killed in the middle of starting a program leaves it locked for as long
// as that takes, so it is tried for a second.
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
	return control{program: s.deps.Program, pipe: PipeDir(s.deps.Root, id), log: LogDir(s.deps.Root, id)}
}

// load reads what is wanted. If that is lost, the journals say what last ran, and that stays; where the journal is lost too, nothing
// is done until the agent says what it wants.
func (s *Supervisor) load() error {
	file, read := wantedIn(s.deps.Root).Load()
	switch {
	case read.State == statefile.Present:
		s.accept(file)
		return nil
	case read.State == statefile.Unreadable:
		return read.Err
	case read.Lost():
		s.deps.Log.Error("what was wanted of MPS is lost; what ran last goes on until the agent says what it wants", "code", read.Code(), "error", read.Err)
	}
	ids, err := cards(s.deps.Root)
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

var errNotServing = errors.New("the supervisor is ending")

// set makes a set the wanted one and returns its generation. The set is on disk when it returns.
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
	s.deps.Log.Info("MPS daemons wanted", "generation", file.Generation, "count", len(set))
	for _, want := range set {
		s.keep(want.GPU)
	}
	for _, k := range s.keepers {
		want, is := s.wishes[k.gpu]
		was, had := before[k.gpu]
		switch {
		case !is:
			s.note(k.gpu, func(st *Status) { st.State, st.Reason = Stopping, "it is no longer wanted" })
		case !had || was.limits() != want.limits():
			s.note(k.gpu, func(st *Status) { st.State, st.Reason = Starting, "what is wanted of it has changed" })
		}
		k.poke()
	}
	return file.Generation, nil
}

// keep starts the keeper of a GPU unless there is one. It is called with the lock held.
func (s *Supervisor) keep(id gpu.UUID) {
	if s.keepers[id] != nil {
		return
	}
	k := &keeper{Supervisor: s, gpu: id, wake: make(chan struct{}, 1)}
	s.keepers[id] = k
	state := Starting
	if _, ok := s.wishes[id]; !ok && !s.undecided[id] {
		state = Stopping
	}
	s.note(id, func(st *Status) { st.State = state })
	s.spawn(k)
}

// retire ends a keeper that has nothing left to do, unless something is wanted again.
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

// wish is what is wanted of a GPU; nil for nothing.
func (s *Supervisor) wish(id gpu.UUID) *Wanted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if want, ok := s.wishes[id]; ok {
		return &want
	}
	return nil
}

// isUndecided tells whether it is not known what is wanted of a GPU.
func (s *Supervisor) isUndecided(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undecided[id]
}

// note changes a status; it is called with the lock held.
func (s *Supervisor) note(id gpu.UUID, edit func(*Status)) {
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

// report is the whole picture, in the order of UUIDs, and a channel that is closed when there is a newer one.
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

// backoff is the pause after so many failures in a row.
func backoff(failures int) time.Duration {
	return min(time.Second<<min(max(failures-1, 0), 6), time.Minute)
}
