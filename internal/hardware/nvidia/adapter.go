package nvidia

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Roots are where this process finds the host's trees: "/", "/", "/proc" and "/sys" on a
// real node, a folder of the simulator otherwise.
type Roots struct {
	// Driver holds the driver's user-space files.
	Driver string
	// Dev holds the folder dev with the device nodes.
	Dev string
	// Proc and Sys are the kernel's file systems themselves.
	Proc, Sys string
}

// Deps is what an Adapter needs.
type Deps struct {
	Library nvml.Interface
	Roots   Roots
	Log     *slog.Logger
	// MakeNodes are the roots below whose folder dev device nodes of the driver that are missing are made; none by default.
	MakeNodes []string
	// LibraryReplaced is told of the library file that a new process would open, when the driver does not work with the one that this
	// process has, or was gone and is back, and that is another file. It must not block.
	LibraryReplaced func(file string)
	// CallDeadline is how long a scan waits for one GPU; zero is 5 s.
	CallDeadline time.Duration
	// Now tells the time; time.Now when nil.
	Now func() time.Time
}

// Adapter reads NVIDIA GPUs. Scan and Watch may run side by side, each of them once
// at a time.
type Adapter struct {
	// work is what reading GPUs takes; only the scan uses it, and readers that it started.
	*work
	library nvml.Interface
	log     *slog.Logger

	// mu guards the session pointer and who uses a session; it is never held during a call.
	mu sync.Mutex
	// ending are sessions that were detached and not yet closed.
	ending []*session
	// scan holds a token while a scan runs, or something that must not run beside one.
	scan chan struct{}
	// suspended counts those who keep the driver closed; resumed is closed when there are none any more.
	suspended int
	resumed   chan struct{}
	// closedByUs is true while the adapter is suspended.
	closedByUs atomic.Bool
	// places are where the GPUs of the last scan are, for lines of the kernel's log that come while there is no session.
	places atomic.Pointer[watchList]
	// latest is what the last scan said; nil before the first.
	latest   *gpu.Snapshot
	session  *session // nil while there is no driver
	sessions int
	// cards are those of the last scan of this session, as far as it has handles of them.
	cards map[gpu.UUID]*card
	// hung are the readers of GPUs that have not returned, hungIdentity those of GPUs that have not said who they are, by
	// NVML's index.
	hung         map[gpu.UUID]*gpuReader
	hungIdentity map[int]*gpuReader
	callDeadline time.Duration
	// migTold is work's migChanged, for those outside the scan.
	migTold *sync.Map
	// silent counts the scans in a row in which the driver did not answer for no lasting reason.
	silent int
	// formerPaths are the paths of the session before.
	paths, formerPaths map[pair]gpu.PCIPath
	// last is the topology of the last scan and what it was computed from.
	last topologyMemo

	libraryReplaced func(file string)
	// away is true while the driver is gone.
	away bool

	// kernelLog is Watch's, and stays open from one to the next.
	kernelLog kernelLog

	doing   atomic.Pointer[activity]
	watched atomic.Pointer[watchList]
}

// activity is the call that a scan is in.
type activity struct {
	card gpu.UUID
	call string
}

// New makes an adapter; it touches nothing until the first Scan.
func New(deps Deps) *Adapter {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.CallDeadline <= 0 {
		deps.CallDeadline = defaultCallDeadline
	}
	migTold := &sync.Map{}
	return &Adapter{
		migTold: migTold,
		work: &work{
			library: deps.Library, log: deps.Log, now: deps.Now,
			proc: tree{deps.Roots.Proc}, sys: tree{deps.Roots.Sys}, dev: tree{deps.Roots.Dev},
			known: map[gpu.UUID]gpu.GPU{}, remembered: map[gpu.UUID]*memories{}, links: map[gpu.UUID]*linkReader{},
			geometries: map[gpu.UUID]*geometry{}, pulses: map[gpu.UUID]*pulse{},
			makeNodes: slices.Clone(deps.MakeNodes), notMade: map[string]string{}, migChanged: migTold,
		},
		library: deps.Library, log: deps.Log, scan: make(chan struct{}, 1),
		cards: map[gpu.UUID]*card{}, paths: map[pair]gpu.PCIPath{},
		hung: map[gpu.UUID]*gpuReader{}, hungIdentity: map[int]*gpuReader{}, callDeadline: deps.CallDeadline,
		libraryReplaced: deps.LibraryReplaced,
		kernelLog:       kernelLog{dev: tree{deps.Roots.Dev}, log: deps.Log},
	}
}

// Doing names the NVML call that the running scan is in and the card that it asks
// ("" for the node); both are empty between scans.
func (a *Adapter) Doing() (card gpu.UUID, call string) {
	if now := a.doing.Load(); now != nil {
		return now.card, now.call
	}
	return "", ""
}

func (a *Adapter) at(card gpu.UUID, call string) { a.doing.Store(&activity{card, call}) }

// Scan reads the whole node. GPU.Health.Causes are the level causes of this scan,
// without Since; GPU.Health.State is Gone for a card that did not answer and empty
// otherwise. While the adapter is suspended it says what the last scan said. The only errors are
// those of ctx.
func (a *Adapter) Scan(ctx context.Context) (gpu.Snapshot, error) {
	a.scan <- struct{}{}
	defer func() { <-a.scan }()
	defer a.doing.Store(nil)
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	if held, err := a.whileSuspended(ctx); held != nil || err != nil {
		return valueOf(held), err
	}
	snapshot, err := a.scanNow(ctx)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	a.latest = &snapshot
	return snapshot, nil
}

func (a *Adapter) scanNow(ctx context.Context) (gpu.Snapshot, error) {
	a.prepareNodes()
	failed := a.open()
	if failed != nil && failed.ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH || failed == nil && a.away {
		a.checkLibrary()
	}
	a.away = failed != nil && gone(failed.ret)
	if failed != nil {
		if doubtful(failed.ret) && a.latestDriver().Present() {
			return a.withoutAnswer(*failed), nil
		}
		return a.withoutDriver(*driverMissing(failed.call, failed.ret)), nil
	}
	a.readCUDA(a.session)
	leave, _ := a.enter(a.session.number, a.Doing)
	snapshot, broken, err := a.read(ctx)
	leave()
	if err != nil {
		return gpu.Snapshot{}, err
	}
	if broken != nil {
		a.detach()
		// The driver may be another one: the next session must not begin before this one is closed, if it can be.
		soon, cancel := context.WithTimeout(ctx, closePatience)
		defer cancel()
		if err := a.awaitClosed(soon); err != nil {
			a.log.Warn("the driver went away and a call into it has not returned", "error", err)
		}
		a.away = true
		return a.withoutDriver(*broken), nil
	}
	return snapshot, nil
}

// checkLibrary tells of a library file that another process would open.
func (a *Adapter) checkLibrary() {
	library, ok := a.library.(interface{ Replaced() (string, bool) })
	if !ok || a.libraryReplaced == nil {
		return
	}
	if file, replaced := library.Replaced(); replaced {
		a.libraryReplaced(file)
	}
}

// closePatience is how long a scan waits for the end of a session whose driver went away.
const closePatience = time.Second

// read is one scan with a driver: who is there, what each card says, what joins them.
// broken says that the driver went away meanwhile.
func (a *Adapter) read(ctx context.Context) (snapshot gpu.Snapshot, broken *gpu.Cause, err error) {
	roll, broken, missing := a.enumerate()
	switch {
	case broken != nil:
		return gpu.Snapshot{}, broken, nil
	case missing != nil:
		return a.withoutAnswer(*missing), nil, nil
	}
	a.silent = 0
	cards := slices.Clone(roll.silent)
	for _, found := range roll.answering {
		if err := ctx.Err(); err != nil {
			return gpu.Snapshot{}, nil, err
		}
		c := a.readInTime(found)
		if c.broken != nil {
			return gpu.Snapshot{}, c.broken, nil
		}
		cards = append(cards, c)
	}
	for _, lost := range roll.lost {
		cards = append(cards, &card{gpu: lost})
	}
	slices.SortFunc(cards, func(x, y *card) int { return x.gpu.Index - y.gpu.Index })

	compareLinks(cards)
	snapshot.Topology = a.topology(cards)
	snapshot.GPUs = make([]gpu.GPU, len(cards))
	for i, c := range cards {
		snapshot.GPUs[i] = c.gpu
	}
	a.complete(&snapshot, a.session.driver)
	snapshot.Faults = append(roll.faults, a.missingControl()...)
	a.remember(cards)
	return snapshot, nil, nil
}

// withoutDriver keeps the cards that are still in the machine, as Gone.
func (a *Adapter) withoutDriver(fault gpu.Cause) gpu.Snapshot {
	snapshot := gpu.Snapshot{Faults: []gpu.Cause{fault}}
	cards := slices.SortedFunc(maps.Values(a.known), func(x, y gpu.GPU) int { return comparePCI(x.PCI, y.PCI) })
	for _, c := range cards {
		if a.sys.hasPCI(c.PCI) == absent {
			delete(a.known, c.UUID)
			continue
		}
		c.Index = len(snapshot.GPUs)
		c.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{fault}}
		snapshot.GPUs = append(snapshot.GPUs, c)
		a.known[c.UUID] = c
	}
	gone := make([]*card, len(snapshot.GPUs))
	for i := range snapshot.GPUs {
		gone[i] = &card{gpu: snapshot.GPUs[i]}
	}
	snapshot.Topology = a.topology(gone)
	a.complete(&snapshot, gpu.Driver{})
	a.watched.Store(nil)
	return snapshot
}

// complete adds to a snapshot whose GPUs they are and what they share.
func (a *Adapter) complete(snapshot *gpu.Snapshot, driver gpu.Driver) {
	snapshot.Vendors = []gpu.VendorState{{Name: gpu.NVIDIA, Driver: driver, Shared: a.controlNodes(), Scanned: true}}
	for i := range snapshot.GPUs {
		snapshot.GPUs[i].Vendor, snapshot.GPUs[i].Driver = gpu.NVIDIA, driver
	}
}

// latestDriver returns the driver of the last scan; zero before the first.
func (a *Adapter) latestDriver() gpu.Driver {
	if a.latest == nil {
		return gpu.Driver{}
	}
	return a.latest.Vendor(gpu.NVIDIA).Driver
}

// remember keeps what later scans need: the identity of cards, so that a lost one
// can be named, and the handles that Watch registers.
func (a *Adapter) remember(cards []*card) {
	a.known = make(map[gpu.UUID]gpu.GPU, len(cards))
	clear(a.cards)
	var handles []handle
	places := make(map[gpu.PCIAddress]gpu.UUID, len(cards))
	for _, c := range cards {
		a.known[c.gpu.UUID] = c.gpu
		places[c.gpu.PCI] = c.gpu.UUID
		if c.device != nil {
			a.cards[c.gpu.UUID] = c
			handles = append(handles, handle{c.gpu.UUID, c.device})
		}
	}
	maps.DeleteFunc(a.remembered, func(id gpu.UUID, _ *memories) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.links, func(id gpu.UUID, _ *linkReader) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.pulses, func(id gpu.UUID, _ *pulse) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.geometries, func(id gpu.UUID, _ *geometry) bool { return !known(a.known, id) })
	last := a.watched.Load()
	if last == nil || last.session != a.session.number || !slices.EqualFunc(last.handles, handles, handle.same) || !maps.Equal(last.places, places) {
		next := &watchList{session: a.session.number, handles: handles, places: places}
		a.watched.Store(next)
		a.places.Store(next)
	}
}

func known(cards map[gpu.UUID]gpu.GPU, id gpu.UUID) bool {
	_, ok := cards[id]
	return ok
}

// Close closes the library, unless a call into it is still running: a hung one must
// not keep the process from ending. An adapter may be used again after it.
func (a *Adapter) Close() {
	select {
	case a.scan <- struct{}{}:
	default:
		return
	}
	defer func() { <-a.scan }()
	a.detach()
}

// unstamped is a cause without Since, which is for those who keep history.
func unstamped(code, message string) gpu.Cause {
	return gpu.Cause{Code: code, Message: message, Since: time.Time{}}
}
