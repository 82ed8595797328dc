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
)

// HolderID tells the maintenance of this package from others in the ledger.
const HolderID = "mig"

// Hardware changes cards. A call returns when the driver has answered, and not before: one that
// takes too long is left behind, and its card is not used until it has returned.
type Hardware interface {
	// SetMIGMode switches MIG; needsReset tells that the card has the mode only after a
	// reset. Setting the mode that the card has already is no error, also while instances
	// exist, and takes a pending change back.
	SetMIGMode(ctx context.Context, card gpu.UUID, on bool) (needsReset bool, err error)
	// CreateMIG makes a GPU instance that begins at that memory slice, and in it a compute
	// instance of its whole size.
	CreateMIG(ctx context.Context, card gpu.UUID, profile string, start int) error
	// DestroyMIG removes a GPU instance with its compute instances; none is there afterwards.
	DestroyMIG(ctx context.Context, card gpu.UUID, gi int) error
	// RemoveEmptyMIG removes a GPU instance that has no compute instance, and fails when it has one.
	RemoveEmptyMIG(ctx context.Context, card gpu.UUID, gi int) error
	// Reset resets these cards and no others.
	Reset(ctx context.Context, cards []gpu.UUID) error
	// Touch makes the device nodes of new instances exist.
	Touch(ctx context.Context) error
}

// Inventory is the node's hardware as last seen.
type Inventory interface {
	Current() *gpu.Snapshot
	// Rescan returns when a scan that began after the call can be seen in Current, and fails
	// when the hardware could not be read or ctx has ended.
	Rescan(ctx context.Context) error
}

// Ledger is who holds what.
type Ledger interface {
	Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error
	Release(holder gpu.Holder, keys []gpu.DeviceKey) error
	Holdings() []ledger.Holding
	// Writes tells whether this agent is the one in charge of the node.
	Writes() bool
}

// Deps is what a Partition needs.
type Deps struct {
	// Dir is the folder of the journal; it has to outlive a reboot.
	Dir string
	// Owner names this instance of the agent in the journal, for people.
	Owner     string
	Hardware  Hardware
	Inventory Inventory
	Ledger    Ledger
	// Devices are the keys under which a card, its MIG devices and shares are offered now.
	Devices func(card gpu.UUID) []gpu.DeviceKey
	// Blind says why it is not known who holds what, such as that the kubelet's checkpoint was
	// not read yet; empty when it is known. Nothing is changed meanwhile.
	Blind func() string
	// Quiesce, if any, ends what Berth itself runs on a card that is about to change its
	// mode, such as an MPS daemon, which would keep it busy. The card is barred by then.
	Quiesce func(ctx context.Context, card gpu.UUID) error
	// Openers, if any, are the programs that have a GPU open now, without what Berth itself runs: Quiesce ends that.
	// It is asked before a GPU that needs a reset is changed.
	Openers func(ctx context.Context, card gpu.UUID) ([]openers.Opener, error)
	// NodeUID, if any, is the UID of our Node, empty while it is not known. A journal of another Node is void.
	NodeUID func() string
	// Notify, if any, is called when Statuses has changed; it must not block.
	Notify func()
	// Clock is the real one when nil.
	Clock clock.Clock
	// Log is slog's default when nil.
	Log *slog.Logger
	// Fault, if not nil, is called after each step. Its error stops everything there, as
	// death would. For tests.
	Fault func(Step) error
}

// Step names a moment at which the program may die.
type Step string

// The steps, in the order of a change. Those before StepJournalWritten leave no trace on the
// hardware.
const (
	StepTakenOver      Step = "taken over"      // the journal that was found has this agent as its owner
	StepBarred         Step = "barred"          // devices of a card were taken from the ledger
	StepJournalTorn    Step = "journal torn"    // half of the new journal is written, beside the old
	StepJournalWritten Step = "journal written" // and the new one is in force
	StepQuiesced       Step = "quiesced"        // for each card that changes its mode
	StepDestroyed      Step = "destroyed"       // for each instance
	StepModeSet        Step = "mode set"        // for each card that changes its mode
	StepReset          Step = "reset"
	StepCreated        Step = "created" // for each instance
	StepTouched        Step = "touched"
	StepRescanned      Step = "rescanned" // the inventory shows what became of it
	StepReleased       Step = "released"  // devices of a card were given back to the ledger
	StepJournalRemoved Step = "journal removed"
)

// Want is what a card is to be.
type Want struct {
	UUID   gpu.UUID
	Wanted mig.Wanted
	// Source says who wants it, for people: "layout all-1g.10gb of label nvidia.com/mig.config".
	Source string
}

// State is how far a card is.
type State string

// The states.
const (
	// Applied: the card is as wanted.
	Applied State = "Applied"
	// Waiting: it changes when somebody has ended, or something is known.
	Waiting State = "Waiting"
	// Changing: it is being changed at this moment.
	Changing State = "Changing"
	// Failed: the hardware refused a step. It is tried again.
	Failed State = "Failed"
	// Refused: the card cannot be that, whoever leaves.
	Refused State = "Refused"
)

// Status is how far a card is that is to be something.
type Status struct {
	UUID gpu.UUID
	// Index is -1 for a card that the last scan did not find.
	Index int
	State State
	// Message is a sentence that says it, with those that are waited for.
	Message string
	// Plan is what is to be done, or was last planned.
	Plan mig.GPUPlan
}

// Pending are the cards that must leave the offers because their mode is to change or is
// changing, with the reason. A card of which only instances change is not among
// them: what is kept of it serves on, and what goes is barred in the ledger.
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

// Partition carries MIG plans out.
type Partition struct {
	deps     Deps
	statuses atomic.Pointer[[]Status]

	mu sync.Mutex // one Reconcile at a time
	// resumed is set when the journal of the life before was looked at.
	resumed bool
	// unseen are cards that were changed since the last scan.
	unseen map[gpu.UUID]bool
	// untouched are cards whose new instances may be without device nodes.
	untouched map[gpu.UUID]bool
	// hung are the calls that were left behind, by card.
	hung  map[gpu.UUID]*hungCall
	tries map[gpu.UUID]*try
	// opened is since when a GPU that needs a reset is seen open.
	opened map[gpu.UUID]time.Time

	faultsMu sync.Mutex
	faults   map[string]gpu.Cause
}

// The pauses after failures, and the patience with the hardware and the inventory.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
	seePause   = 200 * time.Millisecond
	seeWithin  = 10 * time.Second
	scanWithin = 30 * time.Second
	// callWithin is more than the slowest call takes, which is the reset of a card.
	callWithin = 5 * time.Minute
	// farewell is how long the agent waits for a call when it leaves.
	farewell = time.Second
)

// New makes a Partition; it does nothing before Reconcile.
func New(deps Deps) *Partition {
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	p := &Partition{
		deps: deps, unseen: map[gpu.UUID]bool{}, untouched: map[gpu.UUID]bool{}, hung: map[gpu.UUID]*hungCall{}, tries: map[gpu.UUID]*try{},
		opened: map[gpu.UUID]time.Time{}, faults: map[string]gpu.Cause{},
	}
	p.statuses.Store(&[]Status{})
	return p
}

// Statuses are those of the last Reconcile, or of the one that runs, in the order of
// the cards' index. It never waits.
func (p *Partition) Statuses() []Status { return slices.Clone(*p.statuses.Load()) }

// Faults are standing troubles with the journal, by code: MIG_JOURNAL_CORRUPT,
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
	p.deps.Log.Error("MIG journal", "code", code, "problem", message)
}

func (p *Partition) mended(code string) {
	p.faultsMu.Lock()
	defer p.faultsMu.Unlock()
	delete(p.faults, code)
}
