// Package timeslice sets the time slices of GPUs that the settled units and the claims want. It is a separate actor, because
// nvidia-smi may take long.
//
// What it guarantees: a GPU is in the state file before its time slice is changed and until it has the default again,
// so no time slice outlasts its configuration or its claim, whenever the agent ends. A GPU of a claim of which it is not known
// what it wants, because the ledger was lost, keeps its time slice. A GPU whose time slice cannot be set does not
// delay the others.
//
// What wakes it: a settlement of the units, which follows each change of the inventory; [Syncer.WereReset] for a GPU that
// has a time slice; a change of what the claims want; and a timer after a failure, or when a time slice is due to be set again. An
// allocation to a pod does not wake it.
//
// What it writes: the time slices, through nvidia-smi; the file timeslices.json; and the problems of the sources
// "timeslice" and "timeslice-file".
//
// What it never waits for: the API server, the kubelet, the ledger's file, the MPS supervisor. Only the prepare of a claim that wants a
// time slice waits for it.
//
// The package must not import the agent or another package below it, an adapter, or a front end.
package timeslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// FileName is the state file with the GPUs whose time slice may not be the driver's default.
const FileName = "timeslices.json"

const (
	// retry is the pause after nvidia-smi has failed.
	retry = 5 * time.Second
	// recheck is the time after which a time slice is set again. A GPU loses its time slice at every reset and load of
	// the driver. Most of these are found by a scan, but not those of a GPU that does not count its energy, for
	// example.
	recheck = 30 * time.Second
	// unknown is the value in the file for a time slice that is being set, or whose record is lost.
	unknown = "?"
	// standard is the driver's name for its default.
	standard = gpu.TimeSliceDefault
)

// Step is a moment of a change at which a test can stop the actor.
type Step string

// The steps.
const (
	// Begun: a pass over all GPUs begins.
	Begun Step = "pass over the time slices begun"
	// Noted: the file records that a time slice is about to be set.
	Noted Step = "time slice noted"
	// Set: the time slice is set, and the file does not record it yet.
	Set Step = "Set time slice"
)

// Hardware is the inventory.
type Hardware interface{ Current() *gpu.Snapshot }

// Program sets time slices; nvidia-smi is the only one that can.
type Program interface {
	SetTimeSlice(ctx context.Context, id gpu.UUID, slice string) error
}

// Deps are the dependencies of a Syncer.
type Deps struct {
	// Units returns the settled units, from memory.
	Units func() []offer.Unit
	// Settled subscribes to changes of the hardware and of the units, with one signal where one leads to the other.
	Settled func() *signal.Subscription
	// Holdings returns the holdings of the ledger, from memory, and HoldingsChanged subscribes to their changes.
	Holdings        func() []gpu.Holding
	HoldingsChanged func() *signal.Subscription
	// Writes reports whether this agent writes the ledger, from a file. A superseded agent does not know the next claims,
	// so it sets nothing until HoldingsChanged signals that it leads again.
	Writes func() bool
	// Hardware is the inventory of the vendor whose driver has time slices.
	Hardware Hardware
	Program  Program
	// StateDir has the file FileName; a file of another boot than BootID is ignored.
	StateDir string
	BootID   string
	// FileLost reports that the file was invalid, and the consequences.
	FileLost func(source string, result statefile.Result, without string)
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	// Fault is called at each step; an error stops the change there. Nil for none.
	Fault func(Step) error
	Clock clock.Clock
	Log   *slog.Logger
}

// Syncer is the actor. Create it with New, start it with Run.
type Syncer struct {
	deps Deps
	file statefile.File[map[gpu.UUID]string]
	wake *signal.Signal

	// changed signals that a time slice was set, or could not be.
	changed signal.Broadcast

	mu sync.Mutex
	// set is the time slice that each GPU has. That of a GPU that is not in it is unknown.
	set map[gpu.UUID]setting
	// failed has the error of the last attempt to set the time slice of a GPU.
	failed map[gpu.UUID]error
	// resets counts the calls of WereReset: a reset while a time slice is being set may have removed it.
	resets int
}

// setting is a time slice other than the default, and when it was set.
type setting struct {
	slice string
	at    time.Time
}

// New returns a Syncer.
func New(deps Deps) *Syncer {
	if deps.Fault == nil {
		deps.Fault = func(Step) error { return nil }
	}
	return &Syncer{
		deps: deps, wake: signal.New(), set: map[gpu.UUID]setting{}, failed: map[gpu.UUID]error{},
		file: statefile.File[map[gpu.UUID]string]{
			Path: filepath.Join(deps.StateDir,
				FileName), What: "which time slices were set", Format: "berth-timeslices", Version: 1, BootID: deps.BootID,
		},
	}
}

// Remove removes the file from a state directory.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, FileName)) }

// Run keeps the time slices as the units and the claims want them until ctx ends. Start it after the first scan.
func (s *Syncer) Run(ctx context.Context) error {
	settled, held := s.deps.Settled(), s.deps.HoldingsChanged()
	defer settled.Close()
	defer held.Close()
	claimed, withheld := s.claimed(), false
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-settled.C():
		case <-s.wake.C():
		case <-again:
		case <-held.C():
			if !withheld && maps.Equal(claimed, s.claimed()) {
				continue
			}
		}
		claimed = s.claimed()
		if withheld = !s.deps.Writes(); withheld {
			again = nil
			continue
		}
		switch err := s.apply(ctx, claimed); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.deps.Report("timeslice", gpu.Cause{Code: "TIME_SLICE", Message: err.Error()})
			again = s.deps.Clock.After(retry)
		default:
			s.deps.Report("timeslice")
			s.deps.Report("timeslice-file")
			again = nil
			if s.losable() {
				again = s.deps.Clock.After(recheck)
			}
		}
	}
}

// WereReset records that GPUs have lost their time slices. It never waits.
func (s *Syncer) WereReset(gpus []gpu.UUID) {
	s.mu.Lock()
	s.resets++
	before := len(s.set)
	for _, id := range gpus {
		delete(s.set, id)
	}
	lost := len(s.set) < before
	s.mu.Unlock()
	if lost {
		s.wake.Set()
	}
}

// losable reports whether a GPU has a time slice that a reset would remove.
func (s *Syncer) losable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.set) > 0
}

// inForce reports whether the GPU can be assumed to have the time slice that was set last.
func (s *Syncer) inForce(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.set[id]
	return known && s.deps.Clock.Now().Sub(last.at) < recheck
}

// doubt records that the time slice of a GPU is unknown, and returns the number of resets so far.
func (s *Syncer) doubt(id gpu.UUID) (resets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.set, id)
	return s.resets
}

// confirm records that a time slice was set, unless there was a reset after doubt returned that number: then it is set
// again.
func (s *Syncer) confirm(id gpu.UUID, now setting, resets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resets != resets {
		s.wake.Set()
		return
	}
	s.set[id] = now
}

// claimed returns the time slices that claims want for their whole GPUs; empty for a claim of which that is not known.
func (s *Syncer) claimed() map[gpu.UUID]string {
	wanted := map[gpu.UUID]string{}
	for _, h := range s.deps.Holdings() {
		if h.Holder.Kind == gpu.HolderClaim && h.Key.Whole() {
			wanted[h.Key.GPU] = h.TimeSlice
		}
	}
	return wanted
}

// Await returns when a GPU has the time slice that its holder wants, with nil, or at the end of ctx with the reason why it does not.
func (s *Syncer) Await(ctx context.Context, id gpu.UUID, slice string) error {
	if s.deps.Hardware.Current().GPU(id) == nil {
		return fmt.Errorf("GPU %s has no time slices that the agent can set; remove the time slice from the configuration", id)
	}
	changed := s.changed.Subscribe()
	defer changed.Close()
	for {
		s.mu.Lock()
		now, err := s.set[id], s.failed[id]
		s.mu.Unlock()
		if now.slice == slice {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the time slice of GPU %s could not be set to %s: %w", id, slice, cmp.Or(err, errNotYet))
		case <-changed.C():
		}
	}
}

// errNotYet is the reason of a time slice whose setting has not ended.
var errNotYet = errors.New("it was not set yet")

// apply sets the wanted time slice of each GPU, and sets it again when the GPU may have lost it. A GPU whose time slice
// cannot be set does not delay the others.
func (s *Syncer) apply(ctx context.Context, claimed map[gpu.UUID]string) error {
	if err := s.deps.Fault(Begun); err != nil {
		return err
	}
	present, units := s.deps.Hardware.Current(), s.deps.Units()
	wanted := map[gpu.UUID]string{}
	for _, w := range offer.TimeSlices(units) {
		wanted[w.GPU] = w.Slice
	}
	noted, err := s.noted(present)
	if err != nil {
		return err
	}
	for _, unit := range units {
		if unit.Use.Mode == offer.Unknown {
			wanted[unit.Key.GPU] = noted[unit.Key.GPU] // Unchanged while it is unknown what its pods were allocated.
		}
	}
	override(wanted, noted, claimed)
	var failures []error
	for _, id := range keysOf(wanted, noted) {
		slice := wanted[id]
		switch {
		case away(present, id):
			s.doubt(id)
			continue // A GPU that responds again has the default, and the change of the inventory wakes the actor.
		case slice == noted[id] && (slice == "" || slice == unknown || s.inForce(id)):
			continue
		}
		stopped, err := s.change(ctx, noted, id, slice)
		s.report(id, err)
		if stopped {
			return err
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// override makes the wanted time slices those of the claims for their GPUs.
func override(wanted, noted, claimed map[gpu.UUID]string) {
	for id, slice := range claimed {
		switch slice {
		case "":
			wanted[id] = noted[id] // Unchanged while it is unknown what the claim wants.
		case standard:
			delete(wanted, id)
		default:
			wanted[id] = slice
		}
	}
}

// report records the result of an attempt to set the time slice of a GPU for Await.
func (s *Syncer) report(id gpu.UUID, err error) {
	s.mu.Lock()
	if err != nil {
		s.failed[id] = err
	} else {
		delete(s.failed, id)
	}
	s.mu.Unlock()
	s.changed.Set()
}

// change sets the time slice of one GPU, empty for the default, and updates the file. After stopped it must not be called
// again.
func (s *Syncer) change(ctx context.Context, noted map[gpu.UUID]string, id gpu.UUID, slice string) (stopped bool, err error) {
	resets := s.doubt(id)
	again := noted[id] == slice
	if !again && noted[id] != unknown {
		noted[id] = unknown
		if err := s.file.Save(noted); err != nil {
			return true, err
		}
	}
	if err := s.deps.Fault(Noted); err != nil {
		return true, err
	}
	now := s.deps.Clock.Now()
	if err := s.deps.Program.SetTimeSlice(ctx, id, cmp.Or(slice, standard)); err != nil {
		return false, err
	}
	if slice == "" {
		delete(noted, id)
	} else {
		noted[id] = slice
		s.confirm(id, setting{slice, now}, resets)
	}
	if err := s.deps.Fault(Set); err != nil {
		return true, err
	}
	if again {
		return false, nil
	}
	if err := s.file.Save(noted); err != nil {
		return true, err
	}
	s.deps.Log.Info("Set time slice", "gpu", id, "slice", cmp.Or(slice, standard))
	return false, nil
}

// noted reads the file. When its content is lost, the time slice of every GPU is unknown, so that each is set again.
func (s *Syncer) noted(present *gpu.Snapshot) (map[gpu.UUID]string, error) {
	noted, result := s.file.Load()
	if noted == nil {
		noted = map[gpu.UUID]string{}
	}
	if !result.Lost() {
		return noted, nil
	}
	s.deps.FileLost("timeslice-file", result, "the time slice of every GPU is set again")
	for i := range present.GPUs {
		noted[present.GPUs[i].UUID] = unknown
	}
	return noted, s.file.Save(noted)
}

// away reports whether a GPU does not respond now, or has no driver.
func away(snapshot *gpu.Snapshot, id gpu.UUID) bool {
	found := snapshot.GPU(id)
	return !snapshot.DriverPresent() || found == nil || found.Health.State == gpu.Gone
}

// keysOf returns the keys of both maps, sorted.
func keysOf(a, b map[gpu.UUID]string) []gpu.UUID {
	var ids []gpu.UUID
	for _, m := range []map[gpu.UUID]string{a, b} {
		for id := range m {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
