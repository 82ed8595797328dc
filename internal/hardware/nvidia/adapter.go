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

// Roots are the directories of the host as this process sees them: "/", "/", "/proc" and "/sys" on a node, directories of the
// simulator otherwise.
type Roots struct {
	// Driver holds the driver's user-space files.
	Driver string
	// Dev holds the directory dev with the device nodes.
	Dev string
	// Proc and Sys are the roots of procfs and sysfs.
	Proc string
	Sys  string
}

// Deps is what an Adapter needs.
type Deps struct {
	Library nvml.Interface
	Roots   Roots
	Log     *slog.Logger
	// MakeNodes are the roots below which missing device nodes of the driver are created in dev; none by default.
	MakeNodes []string
	// LibraryReplaced is called with the library file that a new process would open, if that is another one than this process
	// has loaded, when the driver refuses the loaded library or has been away. It must not block.
	LibraryReplaced func(file string)
	// CallDeadline is how long a scan waits for one GPU; zero is 5 s.
	CallDeadline time.Duration
	// Now returns the time; time.Now when nil.
	Now func() time.Time
}

// Adapter reads NVIDIA GPUs. Scan and Watch may run at the same time, each of them once.
type Adapter struct {
	// work is the state for reading GPUs. Only the scan and the readers that it started use it.
	*work
	library nvml.Interface
	log     *slog.Logger

	// mu guards the session pointer and the users of sessions. It is never held during a call.
	mu sync.Mutex
	// ending are sessions that were detached and not yet closed.
	ending []*session
	// scan holds a token while a scan runs, or what excludes scans.
	scan chan struct{}
	// suspended counts the suspensions that have not ended; resumed is closed when the last one ends.
	suspended int
	resumed   chan struct{}
	// closedByUs is true while the adapter is suspended.
	closedByUs atomic.Bool
	// addresses are those of the GPUs of the last scan, for lines of the kernel log while there is no session.
	addresses atomic.Pointer[watchList]
	// latest is the result of the last scan; nil before the first.
	latest   *gpu.Snapshot
	session  *session // nil while there is no driver
	sessions int
	// gpus are those of the last scan of this session that have handles.
	gpus map[gpu.UUID]*scannedGPU
	// hung are the readers that have not returned, by GPU; hungIdentity those that hang while they identify a GPU, by NVML's
	// index.
	hung         map[gpu.UUID]*gpuReader
	hungIdentity map[int]*gpuReader
	callDeadline time.Duration
	// changedMIG is work.migChanged, for callers outside a scan.
	changedMIG *sync.Map
	// silent counts the scans in a row that failed with a transient error of the driver.
	silent int
	// formerPaths are the paths of the previous session.
	paths       map[pair]gpu.PCIPath
	formerPaths map[pair]gpu.PCIPath
	// last is the topology of the last scan and what it was computed from.
	last cachedTopology

	libraryReplaced func(file string)
	// away is true while no driver answers.
	away bool

	// kernelLog is used by Watch, and stays open from one Watch to the next.
	kernelLog kernelLog

	doing   atomic.Pointer[activity]
	watched atomic.Pointer[watchList]
}

// activity is the call that a scan is making.
type activity struct {
	gpu  gpu.UUID
	call string
}

// New returns an adapter. It makes no calls before the first Scan.
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
	changedMIG := &sync.Map{}
	return &Adapter{
		changedMIG: changedMIG,
		work: &work{
			library: deps.Library, log: deps.Log, now: deps.Now,
			proc: tree{deps.Roots.Proc}, sys: tree{deps.Roots.Sys}, dev: tree{deps.Roots.Dev},
			known: map[gpu.UUID]gpu.GPU{}, caches: map[gpu.UUID]*cache{}, links: map[gpu.UUID]*linkReader{},
			geometries: map[gpu.UUID]*geometry{}, histories: map[gpu.UUID]*history{},
			makeNodes: slices.Clone(deps.MakeNodes), notMade: map[string]string{}, migChanged: changedMIG,
		},
		library: deps.Library, log: deps.Log, scan: make(chan struct{}, 1),
		gpus: map[gpu.UUID]*scannedGPU{}, paths: map[pair]gpu.PCIPath{},
		hung: map[gpu.UUID]*gpuReader{}, hungIdentity: map[int]*gpuReader{}, callDeadline: deps.CallDeadline,
		libraryReplaced: deps.LibraryReplaced,
		kernelLog:       kernelLog{dev: tree{deps.Roots.Dev}, log: deps.Log},
	}
}

// Doing returns the NVML call that the running scan is making and the GPU that the call is about ("" for the node). Both are
// empty between scans.
func (a *Adapter) Doing() (id gpu.UUID, call string) {
	if now := a.doing.Load(); now != nil {
		return now.gpu, now.call
	}
	return "", ""
}

func (a *Adapter) at(id gpu.UUID, call string) { a.doing.Store(&activity{id, call}) }

// Scan reads the whole node. GPU.Health.Causes are the level causes of this scan, without Since; GPU.Health.State is Gone for a
// GPU that did not answer and empty otherwise. While the adapter is suspended it returns the result of the last scan. The only
// errors are those of ctx.
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
	a.away = failed != nil && driverGone(failed.ret)
	if failed != nil {
		if transient(failed.ret) && a.latestDriver().Present() {
			return a.withoutAnswer(*failed), nil
		}
		if reason := a.unusable(); failed.ret == nvml.ERROR_LIBRARY_NOT_FOUND && reason != "" {
			return a.withoutDriver(*libraryUnusable(reason)), nil
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
		// The driver may have been replaced: the next session should not begin before this one is closed.
		soon, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		if err := a.awaitClosed(soon); err != nil {
			a.log.Warn("Driver became unavailable while a call was in progress", "error", err)
		}
		a.away = true
		return a.withoutDriver(*broken), nil
	}
	return snapshot, nil
}

// checkLibrary reports a library file that was replaced.
func (a *Adapter) checkLibrary() {
	library, ok := a.library.(interface{ Replaced() (string, bool) })
	if !ok || a.libraryReplaced == nil {
		return
	}
	if file, replaced := library.Replaced(); replaced {
		a.libraryReplaced(file)
	}
}

// closeTimeout is how long a scan waits for the end of a session whose driver went away.
const closeTimeout = time.Second

// read scans a node with a driver: it enumerates the GPUs, reads each one, and computes the topology. broken is set when the
// driver went away during the scan.
func (a *Adapter) read(ctx context.Context) (snapshot gpu.Snapshot, broken *gpu.Cause, err error) {
	enumerated, broken, missing := a.enumerate()
	switch {
	case broken != nil:
		return gpu.Snapshot{}, broken, nil
	case missing != nil:
		return a.withoutAnswer(*missing), nil, nil
	}
	a.silent = 0
	gpus := slices.Clone(enumerated.silent)
	for _, found := range enumerated.answering {
		if err := ctx.Err(); err != nil {
			return gpu.Snapshot{}, nil, err
		}
		c := a.readInTime(found)
		if c.broken != nil {
			return gpu.Snapshot{}, c.broken, nil
		}
		gpus = append(gpus, c)
	}
	for _, lost := range enumerated.lost {
		gpus = append(gpus, &scannedGPU{gpu: lost})
	}
	slices.SortFunc(gpus, func(x, y *scannedGPU) int { return x.gpu.Index - y.gpu.Index })

	compareLinks(gpus)
	snapshot.Topology = a.topology(gpus)
	snapshot.GPUs = make([]gpu.GPU, len(gpus))
	for i, c := range gpus {
		snapshot.GPUs[i] = c.gpu
	}
	a.complete(&snapshot, a.session.driver)
	snapshot.Faults = append(enumerated.faults, a.missingControl()...)
	a.remember(gpus)
	return snapshot, nil, nil
}

// withoutDriver returns a snapshot with the GPUs that are still in the machine, as Gone.
func (a *Adapter) withoutDriver(fault gpu.Cause) gpu.Snapshot {
	snapshot := gpu.Snapshot{Faults: []gpu.Cause{fault}}
	gpus := slices.SortedFunc(maps.Values(a.known), func(x, y gpu.GPU) int { return comparePCI(x.PCI, y.PCI) })
	for _, c := range gpus {
		if a.sys.hasPCI(c.PCI) == absent {
			delete(a.known, c.UUID)
			continue
		}
		c.Index = len(snapshot.GPUs)
		c.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{fault}}
		snapshot.GPUs = append(snapshot.GPUs, c)
		a.known[c.UUID] = c
	}
	gone := make([]*scannedGPU, len(snapshot.GPUs))
	for i := range snapshot.GPUs {
		gone[i] = &scannedGPU{gpu: snapshot.GPUs[i]}
	}
	snapshot.Topology = a.topology(gone)
	a.complete(&snapshot, gpu.Driver{})
	a.watched.Store(nil)
	return snapshot
}

// complete adds the vendor, its driver and its shared device nodes to a snapshot.
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

// remember keeps the identities of the GPUs, so that a later scan can identify a lost one, and the handles that Watch
// registers.
func (a *Adapter) remember(gpus []*scannedGPU) {
	a.known = make(map[gpu.UUID]gpu.GPU, len(gpus))
	clear(a.gpus)
	var handles []handle
	addresses := make(map[gpu.PCIAddress]gpu.UUID, len(gpus))
	for _, c := range gpus {
		a.known[c.gpu.UUID] = c.gpu
		addresses[c.gpu.PCI] = c.gpu.UUID
		if c.device != nil {
			a.gpus[c.gpu.UUID] = c
			handles = append(handles, handle{c.gpu.UUID, c.device})
		}
	}
	maps.DeleteFunc(a.caches, func(id gpu.UUID, _ *cache) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.links, func(id gpu.UUID, _ *linkReader) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.histories, func(id gpu.UUID, _ *history) bool { return !known(a.known, id) })
	maps.DeleteFunc(a.geometries, func(id gpu.UUID, _ *geometry) bool { return !known(a.known, id) })
	last := a.watched.Load()
	if last == nil || last.session != a.session.number || !slices.EqualFunc(last.handles, handles, handle.same) || !maps.Equal(last.addresses, addresses) {
		next := &watchList{session: a.session.number, handles: handles, addresses: addresses}
		a.watched.Store(next)
		a.addresses.Store(next)
	}
}

func known(gpus map[gpu.UUID]gpu.GPU, id gpu.UUID) bool {
	_, ok := gpus[id]
	return ok
}

// Close closes the library, unless a scan is running: a call that hangs must not keep the process from ending. The adapter can
// be used again.
func (a *Adapter) Close() {
	select {
	case a.scan <- struct{}{}:
	default:
		return
	}
	defer func() { <-a.scan }()
	a.detach()
}

// newCause returns a cause without Since, which the inventory sets.
func newCause(code, message string) gpu.Cause {
	return gpu.Cause{Code: code, Message: message, Since: time.Time{}}
}
