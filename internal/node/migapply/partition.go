package migapply

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// HolderID distinguishes the maintenance of this package from other maintenance in the ledger.
const HolderID = "mig"

// Hardware changes GPUs. A call returns only when the driver has responded. When a call takes too long, its GPU is not
// used until the call has returned.
type Hardware interface {
	// SetMIGMode switches MIG; needsReset is true when the GPU has the mode only after a reset. Setting the mode that
	// the GPU already has is not an error, also while instances exist, and reverts a pending change.
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (needsReset bool, err error)
	// CreateMIG creates a GPU instance that begins at that memory slice, and in it a compute instance of its whole
	// size.
	CreateMIG(ctx context.Context, id gpu.UUID, profile string, start int) error
	// DestroyMIG removes a GPU instance with its compute instances; afterwards none of them exists.
	DestroyMIG(ctx context.Context, id gpu.UUID, gi int) error
	// RemoveEmptyMIG removes a GPU instance that has no compute instance, and fails when it has one.
	RemoveEmptyMIG(ctx context.Context, id gpu.UUID, gi int) error
	// Reset resets these GPUs and no others.
	Reset(ctx context.Context, ids []gpu.UUID) error
	// Touch creates the device nodes of new instances.
	Touch(ctx context.Context) error
}

// Inventory is the node's hardware as of the last scan.
type Inventory interface {
	Current() *gpu.Snapshot
	// Refresh returns when a scan that began after the call can be seen in Current, and fails
	// when the hardware could not be read or ctx has ended.
	Refresh(ctx context.Context) error
}

// Ledger has the holders of devices.
type Ledger interface {
	Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error
	Release(holder gpu.Holder, keys []gpu.DeviceKey) error
	Holdings() []ledger.Holding
	// Writes reports whether this agent is the one of the node that writes the ledger.
	Writes() bool
}

// Deps are the dependencies of a Partition.
type Deps struct {
	// Dir is the folder of the journal; it has to outlive a reboot.
	Dir string
	// Owner names this instance of the agent in the journal, for its readers.
	Owner     string
	Hardware  Hardware
	Inventory Inventory
	Ledger    Ledger
	// Devices returns the keys under which a GPU, its MIG devices and replicas are advertised now.
	Devices func(id gpu.UUID) []gpu.DeviceKey
	// Blind returns why the holders are not known, such as that the kubelet's checkpoint was not read yet; empty when
	// they are known. Nothing is changed while it is not empty.
	Blind func() string
	// Quiesce, if set, ends Berth's own programs on a GPU whose mode is about to change, such as an MPS daemon, which
	// would keep it in use. The GPU is blocked before the call. It is called again in a later round, and must return soon
	// when they have ended.
	Quiesce func(ctx context.Context, id gpu.UUID) error
	// Openers, if any, returns the programs that have a GPU open now, without those that Quiesce ends. It is called
	// before a GPU that needs a reset is changed.
	Openers func(ctx context.Context, id gpu.UUID) ([]openers.Opener, error)
	// NodeUID, if any, is the UID of this Node, empty while it is not known. A journal of another Node is ignored.
	NodeUID func() string
	// Notify, if any, is called when Statuses has changed; it must not block.
	Notify func()
	// Clock is the real one when nil.
	Clock clock.Clock
	// Log is slog's default when nil.
	Log *slog.Logger
	// Fault, if not nil, is called after each step. Its error stops everything there, as if the agent were killed. For
	// tests.
	Fault func(Step) error
}

// Step names a moment at which the program may be killed.
type Step string

// The steps, in the order of a change. Those before StepJournalWritten leave no trace on the
// hardware.
const (
	StepTakenOver      Step = "taken over"      // the journal of another agent has this agent as its owner
	StepBlocked        Step = "blocked"         // devices of a GPU were acquired in the ledger
	StepJournalTorn    Step = "journal torn"    // half of the new journal is written, beside the old one
	StepJournalWritten Step = "journal written" // the new journal is in force
	StepQuiesced       Step = "quiesced"        // for each GPU that changes its mode
	StepDestroyed      Step = "destroyed"       // for each instance
	StepModeSet        Step = "mode set"        // for each GPU that changes its mode
	StepReset          Step = "reset"
	StepCreated        Step = "created" // for each instance
	StepTouched        Step = "touched"
	StepRescanned      Step = "rescanned" // the inventory shows the result
	StepReleased       Step = "released"  // devices of a GPU were released in the ledger
	StepJournalRemoved Step = "journal removed"
)

// Want is the wanted partition of a GPU.
type Want struct {
	UUID   gpu.UUID
	Wanted mig.Wanted
	// Source names its origin, for messages: "layout all-1g.10gb of label nvidia.com/mig.config".
	Source string
	// Claims means that the wanted state follows from what claims hold of the GPU, in the ledger. A claim that holds the whole
	// GPU, or a placement, then waits for the change, and does not block it.
	Claims bool
}

// State is the progress of a GPU.
type State string

// The states.
const (
	// Applied: the GPU is as wanted.
	Applied State = "Applied"
	// Waiting: it changes when a holder has ended, or when something is known.
	Waiting State = "Waiting"
	// Changing: it is being changed at this moment.
	Changing State = "Changing"
	// Failed: the hardware refused a step. It is tried again.
	Failed State = "Failed"
	// Refused: the GPU cannot have the wanted partition, even when it is released.
	Refused State = "Refused"
)

// Status is the progress of a GPU with a wanted partition.
type Status struct {
	UUID gpu.UUID
	// Index is -1 for a GPU that the last scan did not find.
	Index int
	State State
	// Message describes the state in a sentence, with the holders that block the change.
	Message string
	// Plan is the present plan, or the last one.
	Plan mig.GPUPlan
	// Delayed is true while a call of the driver delays the change by 2 s or more; Message then names the call.
	Delayed bool
}

// Pending returns the GPUs that must be withheld because their mode is about to change or is changing, with the reason.
// A GPU of which only instances change is not among them: kept instances stay in use, and those that are removed are
// blocked in the ledger.
func Pending(statuses []Status) map[gpu.UUID]string {
	pending := map[gpu.UUID]string{}
	for i := range statuses {
		s := &statuses[i]
		if (s.State == Waiting || s.State == Changing) && s.Plan.SetMode != nil {
			pending[s.UUID] = s.Message
		}
	}
	return pending
}

// Partition carries out MIG plans.
type Partition struct {
	deps     Deps
	statuses atomic.Pointer[[]Status]

	mu sync.Mutex // one Reconcile at a time
	// resumed is set once the journal of the previous agent was read.
	resumed bool
	// unseen are GPUs that were changed since the last scan.
	unseen map[gpu.UUID]bool
	// untouched are GPUs whose new instances may lack device nodes.
	untouched map[gpu.UUID]bool
	// open are the calls that no round waits for any more, by GPU; returned signals the end of one of a change.
	open     map[gpu.UUID]*openCall
	returned signal.Broadcast
	tries    map[gpu.UUID]*try
	// opened is the time since which a program has had a GPU open that needs a reset.
	opened map[gpu.UUID]time.Time

	storeMu sync.Mutex
	// store is open while it has users: a round, or a call of a change that has not returned.
	store *store
	users int

	faultsMu sync.Mutex
	faults   map[string]gpu.Cause
}

// The pauses after failures, and the deadlines of hardware and inventory.
const (
	firstRetry     = time.Second
	lastRetry      = time.Minute
	verifyInterval = 200 * time.Millisecond
	verifyWithin   = 10 * time.Second
	scanWithin     = 30 * time.Second
	// callWithin is more than the slowest call takes, which is the reset of a GPU.
	callWithin = 5 * time.Minute
	// leaveAfter is how long the changes of the other GPUs wait for a call.
	leaveAfter = 250 * time.Millisecond
	// sayAfter is how long a call takes before it delays a change: a change of the MIG mode often takes longer than leaveAfter.
	sayAfter = 2 * time.Second
	// shutdownGrace is how long the agent waits for a call when it stops.
	shutdownGrace = time.Second
)

// New returns a Partition; it does nothing before Reconcile.
func New(deps Deps) *Partition {
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	p := &Partition{
		deps: deps, unseen: map[gpu.UUID]bool{}, untouched: map[gpu.UUID]bool{}, open: map[gpu.UUID]*openCall{}, tries: map[gpu.UUID]*try{},
		opened: map[gpu.UUID]time.Time{}, faults: map[string]gpu.Cause{},
	}
	p.statuses.Store(&[]Status{})
	return p
}

// Statuses returns those of the last Reconcile, or of the one that runs, in the order of the GPUs' index. It never
// waits.
func (p *Partition) Statuses() []Status { return slices.Clone(*p.statuses.Load()) }

// Faults returns the present problems with the journal, by code: MIG_JOURNAL_CORRUPT,
// MIG_JOURNAL_VERSION, MIG_JOURNAL_UNWRITABLE.
func (p *Partition) Faults() []gpu.Cause {
	p.faultsMu.Lock()
	defer p.faultsMu.Unlock()
	faults := make([]gpu.Cause, 0, len(p.faults))
	for _, fault := range p.faults {
		faults = append(faults, fault)
	}
	slices.SortFunc(faults, func(a, b gpu.Cause) int { return cmp.Compare(a.Code, b.Code) })
	return faults
}

func (p *Partition) fault(code, message string) {
	p.faultsMu.Lock()
	defer p.faultsMu.Unlock()
	if p.faults[code].Message == message {
		return
	}
	p.faults[code] = gpu.Cause{Code: code, Message: message, Since: p.deps.Clock.Now()}
	p.deps.Log.Error("Found a problem of the MIG journal", "code", code, "problem", message)
}

func (p *Partition) clearFault(code string) {
	p.faultsMu.Lock()
	defer p.faultsMu.Unlock()
	delete(p.faults, code)
}
