// Package mpssync sends the wanted set of MPS daemons to the MPS supervisor and has the states of the daemons. It is a
// separate actor, because the supervisor may take long to respond.
//
// What it guarantees: only it sends the wanted set, one set at a time and computed when it is sent, so no older set
// replaces a newer one. A GPU whose daemon is quiesced is in no set until it is unquiesced. While the driver is absent
// nothing is sent, since an empty set ends every client. A set that the supervisor has accepted is not sent again
// unless the supervisor reports another one.
//
// What wakes it: a change of the settled units, of the inventory, or of what claims want; a report of the supervisor; Quiesce and
// Unquiesce; and a timer after a failure. An allocation does not wake it.
//
// What it writes: the supervisor's wanted set, and the problems of the sources "mps" and "mps-daemons".
//
// The wanted set is that of the settled units and of the claims, which the ledger has. While it is not known what a claim wants, because
// the ledger was lost, a daemon on its GPU is left unchanged. A GPU on which a daemon may still run is ready neither for another claim
// ([Syncer.Await]) nor for the device plugin ([Syncer.Ending]).
//
// What it never waits for: the API server, the driver, the kubelet, the ledger. The state that the device plugin and
// the CDI spec read ([Syncer.Unready], [Syncer.Units], [Syncer.Status]) is in memory.
//
// The package must not import the agent or another package below it, an adapter, or a front end.
package mpssync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// retry is the pause after the supervisor has failed.
	retry = 5 * time.Second
	// prepareWithin bounds Prepare.
	prepareWithin = 2 * time.Second
	// quiesceWithin bounds the wait for a daemon to end, quiesceStep is the time between two checks.
	quiesceWithin = 30 * time.Second
	quiesceStep   = 50 * time.Millisecond
)

// errWithheld means that a set was not sent, because another agent leads.
var errWithheld = errors.New("another agent on this node has taken over the MPS daemons")

// Quiescer is a reason to have a GPU without its daemon. Each quiesces and unquiesces GPUs independently of the others.
type Quiescer string

// The quiescers.
const (
	ForMIG   Quiescer = "MIG change"
	ForReset Quiescer = "reset"
)

// Supervisor keeps the daemons that are wanted; *[mps.Client] reaches one.
type Supervisor interface {
	Set(ctx context.Context, wanted []mps.Wanted) (generation int64, err error)
	Status(ctx context.Context) ([]mps.Status, error)
	Watch(ctx context.Context, see func(mps.Report))
}

var _ Supervisor = (*mps.Client)(nil)

// Deps are the dependencies of a Syncer.
type Deps struct {
	// Units returns the settled units, from memory; UnitsChanged subscribes to their changes.
	Units        func() []offer.Unit
	UnitsChanged func() *signal.Subscription
	Hardware     inventory.Hardware
	// Holdings returns the holdings of the ledger, from memory, and HoldingsChanged subscribes to their changes.
	Holdings        func() []gpu.Holding
	HoldingsChanged func() *signal.Subscription
	// Writes reports whether this agent writes the ledger, from a file. A superseded agent does not know the next claims,
	// so it sends no set until HoldingsChanged signals that it leads again.
	Writes     func() bool
	Supervisor Supervisor
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	// Changed is called when the results of Units, Unready or Status may have changed for a reason other than a change
	// of the settled units; it must not block.
	Changed func()
	Clock   clock.Clock
}

// Syncer is the actor. Create it with New, start it with Run.
type Syncer struct {
	deps Deps
	wake *signal.Signal
	// statuses are the daemons as the supervisor reported them last, by GPU.
	statuses atomic.Pointer[map[gpu.UUID]mps.Status]
	// missing is the reason why the supervisor has not accepted the wanted set; empty when it has.
	missing atomic.Pointer[string]

	// sending has a token while a set is computed and sent. It guards accepted and generation, which are the last set
	// that the supervisor accepted (nil for none) and its generation.
	sending    chan struct{}
	accepted   []mps.Wanted
	generation int64

	mu sync.Mutex
	// reports counts the reports, and reported is the generation of the last one.
	reports  int
	reported int64
	quiesced map[quiesced]bool
	// asked has the GPUs whose daemons may run, with the generation from which on a report without the GPU shows that its daemon has
	// ended; it is the largest number while the daemon is wanted.
	asked map[gpu.UUID]int64
}

type quiesced struct {
	by Quiescer
	id gpu.UUID
}

// New returns a Syncer.
func New(deps Deps) *Syncer {
	s := &Syncer{
		deps: deps, wake: signal.New(), sending: make(chan struct{}, 1), reported: mps.NoGeneration, quiesced: map[quiesced]bool{},
		asked: map[gpu.UUID]int64{},
	}
	s.statuses.Store(&map[gpu.UUID]mps.Status{})
	missing := "its supervisor was not queried yet"
	s.missing.Store(&missing)
	return s
}

// Prepare sends the wanted set and reads the daemons' states, so that an agent that starts beside running daemons
// does not report their replicas as unhealthy at first. Call it once, when units are settled and before Run.
func (s *Syncer) Prepare(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	if s.send(ctx, true) != nil {
		return // Reported; Run sends the set again.
	}
	_ = s.ask(ctx) // Run receives a report.
}

// Run follows the daemons and sends the wanted set when it has changed, until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	units := s.deps.UnitsChanged()
	defer units.Close()
	hardware := s.deps.Hardware.Subscribe()
	defer hardware.Close()
	held := s.deps.HoldingsChanged()
	defer held.Close()
	claimed := s.shared()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.deps.Supervisor.Watch(ctx, s.see)
	}()
	defer func() { <-watched }()
	var again <-chan time.Time
	withheld := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-units.C():
		case <-hardware.C():
		case <-s.wake.C():
		case <-again:
		case <-held.C():
			now := s.shared()
			if slices.Equal(claimed, now) && !withheld {
				continue
			}
			claimed = now
			s.deps.Changed()
		}
		s.reportFailed()
		again = nil
		err := s.send(ctx, false)
		if withheld = errors.Is(err, errWithheld); err != nil && !withheld {
			again = s.deps.Clock.After(retry)
		}
	}
}

// see handles a report of the supervisor.
func (s *Syncer) see(report mps.Report) {
	s.mu.Lock()
	s.reports++
	s.reported = report.Generation
	s.noteEnded(report)
	changed := s.know(report.GPUs)
	s.mu.Unlock()
	if changed {
		s.deps.Changed()
	}
	s.wake.Set()
}

// know replaces the states of the daemons and reports whether that changed anything. The lock is held.
func (s *Syncer) know(statuses []mps.Status) (changed bool) {
	next := map[gpu.UUID]mps.Status{}
	for _, status := range statuses {
		next[status.GPU] = status
	}
	return !maps.Equal(*s.statuses.Swap(&next), next)
}

// reportFailed reports a problem for each daemon that has failed.
func (s *Syncer) reportFailed() {
	var causes []gpu.Cause
	for _, unit := range s.Units() {
		if status, ok := s.Status(unit.Key.GPU); ok && status.State == mps.Failed {
			causes = append(causes, gpu.Cause{Code: "MPS_DAEMON",
				Message: fmt.Sprintf("the MPS daemon of %s: %s", status.GPU, status.Reason)})
		}
	}
	s.deps.Report("mps-daemons", causes...)
}

// send sends the present wanted set to the supervisor. Unless always is set, it sends nothing when the supervisor has
// accepted that set and has reported no other one since. Only one call sends at a time. A missing supervisor is not an
// error while no daemon is wanted.
func (s *Syncer) send(ctx context.Context, always bool) error {
	select {
	case s.sending <- struct{}{}:
		defer func() { <-s.sending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.deps.Writes() {
		return errWithheld
	}
	if !s.deps.Hardware.Current().DriverPresent() {
		return nil // An empty set would end every client.
	}
	err := s.identify(ctx)
	wanted := s.wanted()
	if s.withoutSupervisor(err, wanted) {
		s.accepted, err = nil, nil
	} else if err == nil {
		if !always && s.holds(wanted) {
			return nil
		}
		s.accepted = nil
		s.noteAsked(wanted)
		var generation int64
		if generation, err = s.deps.Supervisor.Set(ctx, wanted); len(wanted) == 0 && errors.Is(err, mps.ErrUnavailable) {
			generation, err = mps.NoGeneration, nil
		}
		if err == nil {
			s.accept(wanted, generation)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	missing := ""
	if err != nil {
		missing = err.Error()
		s.deps.Report("mps", gpu.Cause{Code: "MPS_SUPERVISOR", Message: missing})
	} else {
		s.deps.Report("mps")
	}
	if before := s.missing.Swap(&missing); *before != missing {
		s.deps.Changed()
	}
	return err
}

// holds reports whether the supervisor has accepted the set and has reported no other one since.
func (s *Syncer) holds(wanted []mps.Wanted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted != nil && slices.Equal(s.accepted, wanted) && s.reported == s.generation
}

// accept records that the supervisor has accepted the set. It keeps a report of a newer one.
func (s *Syncer) accept(wanted []mps.Wanted, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted, s.generation = wanted, generation
	s.noteAccepted(wanted, generation)
	if generation == mps.NoGeneration || s.reported < generation {
		s.reported = generation
	}
}

// identify reads the states of the daemons when only they show whether a GPU in use is shared through MPS: a set
// without it would end its clients.
func (s *Syncer) identify(ctx context.Context) error {
	if !hasUnknown(s.units()) {
		return nil
	}
	return s.ask(ctx)
}

// ask reads the states of the daemons. A response is dropped when a report has arrived since the request: it may be
// older, and the next report comes only with the next change.
func (s *Syncer) ask(ctx context.Context) error {
	s.mu.Lock()
	reports := s.reports
	s.mu.Unlock()
	statuses, err := s.deps.Supervisor.Status(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	changed := s.reports == reports && s.know(statuses)
	s.mu.Unlock()
	if changed {
		s.deps.Changed()
	}
	return nil
}

// wanted returns the MPS daemons that should run; never nil.
func (s *Syncer) wanted() []mps.Wanted {
	snapshot := s.deps.Hardware.Current()
	wanted := []mps.Wanted{}
	for _, unit := range s.Units() {
		found := snapshot.GPU(unit.Key.GPU)
		if found == nil || s.isQuiesced(unit.Key.GPU) {
			continue
		}
		wanted = append(wanted, mps.Wanted{
			GPU: unit.Key.GPU, Index: found.Index, Replicas: unit.Use.Replicas, Limits: mps.LimitsOf(unit.Use.MPSLimits),
		})
	}
	return wanted
}

// Units returns the units that need an MPS daemon: settled ones, and those of claims. For a GPU that is in use while the record of its
// mode is lost, a ready daemon shows that the mode is MPS, and the limits of its clients.
func (s *Syncer) Units() []offer.Unit {
	all := s.units()
	units := offer.MPSUnits(all)
	for _, unit := range all {
		status, ok := s.Status(unit.Key.GPU)
		if unit.Use.Mode != offer.Unknown || !ok || status.State != mps.Ready {
			continue
		}
		unit.Use.MPSLimits = status.Limits.MPSLimits()
		units = append(units, unit)
	}
	return units
}

// Status returns the daemon of a GPU as the supervisor reported it last.
func (s *Syncer) Status(id gpu.UUID) (mps.Status, bool) {
	status, ok := (*s.statuses.Load())[id]
	return status, ok
}

// PID returns the process ID of a GPU's daemon; 0 without one.
func (s *Syncer) PID(id gpu.UUID) int {
	daemon, _ := s.Status(id)
	return daemon.PID
}

// Unready returns why MPS replicas of a GPU cannot be allocated now; empty when its daemon is ready.
func (s *Syncer) Unready(id gpu.UUID) string {
	if why := *s.missing.Load(); why != "" {
		return "no MPS daemon: " + why
	}
	status, ok := s.Status(id)
	switch {
	case !ok:
		return "its MPS daemon is not started yet"
	case status.State != mps.Ready:
		return "its MPS daemon is " + string(status.State) + ": " + status.Reason
	}
	return ""
}

// Quiesce ends the MPS daemon of a GPU and waits for that. It is not started again before Unquiesce, which must follow
// also after an error.
func (s *Syncer) Quiesce(ctx context.Context, by Quiescer, id gpu.UUID) error {
	s.mu.Lock()
	s.quiesced[quiesced{by, id}] = true
	s.mu.Unlock()
	if !s.mayRun(id) && !slices.ContainsFunc(s.Units(), func(u offer.Unit) bool { return u.Key.GPU == id }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, quiesceWithin)
	defer cancel()
	if err := s.send(ctx, true); err != nil {
		return fmt.Errorf("end the MPS daemon of %s: %w", id, err)
	}
	for {
		statuses, err := s.deps.Supervisor.Status(ctx)
		if err != nil {
			return fmt.Errorf("end the MPS daemon of %s: %w", id, err)
		}
		if !slices.ContainsFunc(statuses, func(status mps.Status) bool { return status.GPU == id }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the MPS daemon of %s: it still runs after %s", id, quiesceWithin)
		case <-s.deps.Clock.After(quiesceStep):
		}
	}
}

// Unquiesce lets the daemons of all GPUs that by has quiesced start again, without those in still. It never waits.
func (s *Syncer) Unquiesce(by Quiescer, still ...gpu.UUID) {
	s.mu.Lock()
	before := len(s.quiesced)
	maps.DeleteFunc(s.quiesced, func(q quiesced, _ bool) bool { return q.by == by && !slices.Contains(still, q.id) })
	changed := len(s.quiesced) != before
	s.mu.Unlock()
	if changed {
		s.wake.Set()
	}
}

func (s *Syncer) isQuiesced(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiesced[quiesced{ForMIG, id}] || s.quiesced[quiesced{ForReset, id}]
}
