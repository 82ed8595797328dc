package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// sliceFile lists the GPUs whose time slice may not be the driver's default.
	sliceFile = "timeslices.json"
	// sliceRetry is the pause after nvidia-smi has failed.
	sliceRetry = 5 * time.Second
	// sliceCheck is the time after which a time slice is set again: a GPU loses it at any reset and load of the driver. Most
	// are seen by a scan, but not those of a GPU that does not count its energy, for one.
	sliceCheck = 30 * time.Second
	// sliceUnknown stands in the file for a slice that is being set, or whose record is lost.
	sliceUnknown = "?"
	// quiesceStep and quiesceWithin are the patience with an MPS daemon that ends.
	quiesceStep   = 50 * time.Millisecond
	quiesceWithin = 30 * time.Second
)

// sharing keeps the driver's side of shared GPUs as the units want it: time slices
// through nvidia-smi, MPS daemons through the supervisor.
type sharing struct {
	slices  sliceSetter
	daemons *mps.Client
	// set is the file of the GPUs whose time slice may not be the default; a boot makes it void.
	set statefile.File[map[gpu.UUID]string]
	// check is how long a time slice that was set is believed to be in force, and setAt is when each was. A GPU that is
	// not in it, as one that was away or was reset, gets its slice again.
	check time.Duration
	setAt map[gpu.UUID]time.Time
	// resets counts the resets that were seen: one that comes while a slice is being set may have taken it away.
	resets int
	// wake and resend have a token whenever the units or the quiesced GPUs have changed, for the time slices
	// and for the set of daemons; asks are answered when a set is with the supervisor.
	wake, resend chan struct{}
	asks         chan chan error
	// statuses are the daemons as the supervisor last said, by GPU; away says why it does not
	// take what is wanted, empty when it does.
	statuses atomic.Pointer[map[gpu.UUID]mps.Status]
	away     atomic.Pointer[string]
	// reports counts what the supervisor has reported by itself.
	reports atomic.Int64

	mu sync.Mutex
	// quiesced are cards whose daemon must end although their units still want it.
	quiesced map[gpu.UUID]bool
	// resetting are those of them that are being reset by hand, until that has ended.
	resetting map[gpu.UUID]bool
}

// sliceSetter is nvidia-smi, which alone can set a time slice.
type sliceSetter interface {
	SetTimeSlice(ctx context.Context, card gpu.UUID, slice string) error
}

func newSharing(slices sliceSetter, daemons *mps.Client, stateDir, bootID string) *sharing {
	s := &sharing{
		slices: slices, daemons: daemons,
		set: statefile.File[map[gpu.UUID]string]{
			Path: filepath.Join(stateDir, sliceFile), What: "which time slices were set", Format: "berth-timeslices", Version: 1, BootID: bootID,
		},
		check: sliceCheck, setAt: map[gpu.UUID]time.Time{},
		wake: make(chan struct{}, 1), resend: make(chan struct{}, 1), asks: make(chan chan error),
		quiesced: map[gpu.UUID]bool{}, resetting: map[gpu.UUID]bool{},
	}
	s.statuses.Store(&map[gpu.UUID]mps.Status{})
	asked := "its supervisor was not asked yet"
	s.away.Store(&asked)
	return s
}

func (s *sharing) poke() {
	poke(s.wake)
	poke(s.resend)
}

// share brings time slices in line with the units and follows the MPS daemons, until ctx ends.
func (a *Agent) share(ctx context.Context) error {
	s := a.sharing
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watchDaemons(ctx)
	}()
	defer func() { <-watched }()
	select {
	case <-ctx.Done():
		return nil
	case <-a.compared: // Before, no card is known.
	}
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	for {
		var again <-chan time.Time
		if err := a.setSlices(ctx); err != nil && ctx.Err() == nil {
			a.problemList.SetError("timeslice", "TIME_SLICE", err)
			again = a.clock.After(sliceRetry)
		} else {
			a.problemList.Set("timeslice")
			a.problemList.Set("timeslice-file")
			if s.slicesToCheck() {
				again = a.clock.After(s.check)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-hardware.C():
		case <-again:
		}
	}
}

// slicesToCheck tells whether a GPU has a time slice that it may lose.
func (s *sharing) slicesToCheck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.setAt) > 0
}

// wereReset makes the time slices of GPUs unknown.
func (s *sharing) wereReset(cards []gpu.UUID) {
	s.mu.Lock()
	s.resets++
	for _, card := range cards {
		delete(s.setAt, card)
	}
	s.mu.Unlock()
	s.poke()
}

// believed tells whether the GPU still has the time slice that was set.
func (s *sharing) believed(card gpu.UUID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, known := s.setAt[card]
	return known && now.Sub(at) < s.check
}

// doubt notes that a GPU is not known to have its time slice, and returns the number of resets so far.
func (s *sharing) doubt(card gpu.UUID) (resets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.setAt, card)
	return s.resets
}

// believe notes that a GPU has its time slice, unless a reset was seen since doubt returned that number.
func (s *sharing) believe(card gpu.UUID, at time.Time, resets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resets == resets {
		s.setAt[card] = at
	}
}

// setSlices gives each GPU the time slice that is wanted, and again when it may have lost it. A GPU is in the
// file before its slice is changed and until it has the default again, so that a death in between leaves no
// slice behind. One GPU whose slice cannot be set does not keep it from the others.
func (a *Agent) setSlices(ctx context.Context) error {
	wanted := map[gpu.UUID]string{}
	for _, w := range offer.TimeSlices(a.allocatable.Units()) {
		wanted[w.GPU] = w.Slice
	}
	present := a.inventory.Current()
	set, err := a.slicesSet(present)
	if err != nil {
		return err
	}
	for _, unit := range a.allocatable.Units() {
		if unit.Use.Mode == offer.Unknown {
			wanted[unit.Key.GPU] = set[unit.Key.GPU] // Not touched while it is not known what its pods were given.
		}
	}
	var failures []error
	for _, card := range orderedCards(wanted, set) {
		slice := wanted[card]
		switch {
		case away(present, card):
			a.sharing.doubt(card)
			continue // It has the default when it comes back, or we are asked again.
		case slice == set[card] && (slice == "" || slice == sliceUnknown || a.sharing.believed(card, a.clock.Now())):
			continue
		}
		died, err := a.setSlice(ctx, set, card, slice)
		if died {
			return err
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// setSlice sets one GPU's time slice, the empty one being the default, and notes it in the file. When died is true nothing
// more may be done.
func (a *Agent) setSlice(ctx context.Context, set map[gpu.UUID]string, card gpu.UUID, slice string) (died bool, err error) {
	resets := a.sharing.doubt(card)
	again := set[card] == slice
	if !again && set[card] != sliceUnknown {
		// What the card has is not known from here on; nothing equals a question mark.
		set[card] = sliceUnknown
		if err := a.sharing.set.Save(set); err != nil {
			return true, err
		}
	}
	if err := a.fault(StepSliceNoted); err != nil {
		return true, err
	}
	now := a.clock.Now()
	if err := a.sharing.slices.SetTimeSlice(ctx, card, orDefault(slice)); err != nil {
		return false, err
	}
	if slice == "" {
		delete(set, card)
	} else {
		set[card] = slice
		a.sharing.believe(card, now, resets)
	}
	if err := a.fault(StepSliceSet); err != nil {
		return true, err
	}
	if again {
		return false, nil
	}
	if err := a.sharing.set.Save(set); err != nil {
		return true, err
	}
	a.log.Info("time slice set", "gpu", card, "slice", orDefault(slice))
	return false, nil
}

// away tells whether a GPU does not answer now, or has no driver.
func away(snapshot *gpu.Snapshot, id gpu.UUID) bool {
	card := snapshot.GPU(id)
	return !snapshot.Driver.Present() || card == nil || card.Health.State == gpu.Gone
}

func orDefault(slice string) string {
	if slice == "" {
		return "default"
	}
	return slice
}

// orderedCards are the keys of both maps, sorted.
func orderedCards(a, b map[gpu.UUID]string) []gpu.UUID {
	var cards []gpu.UUID
	for _, m := range []map[gpu.UUID]string{a, b} {
		for card := range m {
			cards = append(cards, card)
		}
	}
	slices.Sort(cards)
	return slices.Compact(cards)
}

// slicesSet reads the file. When what it said is lost, the slice of every GPU is unknown, so that each is set again.
func (a *Agent) slicesSet(present *gpu.Snapshot) (map[gpu.UUID]string, error) {
	set, result := a.sharing.set.Load()
	if set == nil {
		set = map[gpu.UUID]string{}
	}
	if !result.Lost() {
		return set, nil
	}
	a.stateLost("timeslice-file", result, "the time slice of every GPU is set again")
	for i := range present.GPUs {
		set[present.GPUs[i].UUID] = sliceUnknown
	}
	return set, a.sharing.set.Save(set)
}

// mpsUnits are the units that need an MPS daemon. Of a GPU that is in use while the record of its mode is lost, a daemon
// that serves tells that it was MPS, and what its clients are limited to.
func (a *Agent) mpsUnits() []offer.Unit {
	units := offer.MPSUnits(a.allocatable.Units())
	statuses := *a.sharing.statuses.Load()
	for _, unit := range a.allocatable.Units() {
		status, ok := statuses[unit.Key.GPU]
		if unit.Use.Mode != offer.Unknown || !ok || status.State != mps.Ready {
			continue
		}
		limits := status.Limits
		unit.Use.PinnedMemoryMiB, unit.Use.ActiveThreadPercentage, unit.Use.SingleUser = limits.PinnedMemoryMiB, limits.ActiveThreadPercentage, !limits.MultiUser
		units = append(units, unit)
	}
	return units
}

// daemonsWanted are the MPS daemons that are to run.
func (a *Agent) daemonsWanted() []mps.Wanted {
	a.sharing.mu.Lock()
	defer a.sharing.mu.Unlock()
	snapshot := a.inventory.Current()
	wanted := []mps.Wanted{}
	for _, unit := range a.mpsUnits() {
		card := snapshot.GPU(unit.Key.GPU)
		if card == nil || a.sharing.quiesced[unit.Key.GPU] || a.sharing.resetting[unit.Key.GPU] {
			continue
		}
		wanted = append(wanted, mps.Wanted{
			GPU: unit.Key.GPU, Index: card.Index, Replicas: unit.Use.Replicas, PinnedMemoryMiB: unit.Use.PinnedMemoryMiB,
			ActiveThreadPercentage: unit.Use.ActiveThreadPercentage, MultiUser: !unit.Use.SingleUser,
		})
	}
	return wanted
}

// setDaemons tells the supervisor which daemons are wanted; only sendDaemons calls it. A node that wants none and
// has no supervisor is well.
func (a *Agent) setDaemons(ctx context.Context) error {
	if !a.inventory.Current().Driver.Present() {
		return nil // An empty set would end every client.
	}
	err := a.learnDaemons(ctx)
	wanted := a.daemonsWanted()
	if err == nil {
		err = a.sharing.daemons.Set(ctx, wanted)
	}
	if len(wanted) == 0 && errors.Is(err, mps.ErrUnavailable) {
		err = nil
	}
	a.problemList.SetError("mps", "MPS_SUPERVISOR", err)
	why := ""
	if err != nil {
		why = err.Error()
	}
	if last := a.sharing.away.Swap(&why); *last != why {
		// The CDI spec has the directories of daemons only while shares can be given out.
		a.cdi.Poke()
		a.wakePlugin()
	}
	return err
}

// learnDaemons asks which daemons run when only they can tell whether a GPU in use is shared by MPS: to leave
// one out of the wanted set would end its clients.
func (a *Agent) learnDaemons(ctx context.Context) error {
	if !slices.ContainsFunc(a.allocatable.Units(), func(u offer.Unit) bool { return u.Use.Mode == offer.Unknown }) {
		return nil
	}
	reports := a.sharing.reports.Load()
	statuses, err := a.sharing.daemons.Status(ctx)
	if err == nil {
		a.sharing.knowAsked(statuses, reports)
	}
	return err
}

// askDaemons learns how the daemons are before the first share is advertised, so that an
// agent that takes over calls no share unhealthy that is well.
func (a *Agent) askDaemons(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if a.sentDaemons(ctx) != nil {
		return
	}
	reports := a.sharing.reports.Load()
	if statuses, err := a.sharing.daemons.Status(ctx); err == nil {
		a.sharing.knowAsked(statuses, reports)
	}
}

// knowReported takes what the supervisor reports by itself: each change, in order.
func (s *sharing) knowReported(statuses []mps.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports.Add(1)
	s.know(statuses)
}

// knowAsked takes an answer to a question, unless a report has come since there were that many: the answer may be the
// older of the two, and the next report comes only with the next change.
func (s *sharing) knowAsked(statuses []mps.Status, reports int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reports.Load() == reports {
		s.know(statuses)
	}
}

func (s *sharing) know(statuses []mps.Status) {
	known := map[gpu.UUID]mps.Status{}
	for _, status := range statuses {
		known[status.GPU] = status
	}
	s.statuses.Store(&known)
}

// watchDaemons follows what the supervisor says of its daemons.
func (a *Agent) watchDaemons(ctx context.Context) {
	a.sharing.daemons.Watch(ctx, func(statuses []mps.Status) {
		a.sharing.knowReported(statuses)
		a.noteDaemons()
		a.wakePlugin()
		a.cdi.Poke()
		// A supervisor that has come back may not know what is wanted.
		a.sharing.poke()
	})
}

// noteDaemons makes a problem of each daemon that has failed.
func (a *Agent) noteDaemons() {
	var causes []gpu.Cause
	statuses := *a.sharing.statuses.Load()
	for _, unit := range a.mpsUnits() {
		if s, ok := statuses[unit.Key.GPU]; ok && s.State == mps.Failed {
			causes = append(causes, gpu.Cause{Code: "MPS_DAEMON", Message: fmt.Sprintf("the MPS daemon of %s: %s", s.GPU, s.Reason)})
		}
	}
	a.problemList.Set("mps-daemons", causes...)
}

// withoutDaemon says why shares of a GPU through MPS cannot be given out now; empty when
// its daemon is ready.
func (a *Agent) withoutDaemon(card gpu.UUID) string {
	if why := *a.sharing.away.Load(); why != "" {
		return "no MPS daemon: " + why
	}
	s, ok := (*a.sharing.statuses.Load())[card]
	switch {
	case !ok:
		return "its MPS daemon is not started yet"
	case s.State != mps.Ready:
		return "its MPS daemon is " + string(s.State) + ": " + s.Reason
	}
	return ""
}

// quiesce ends the MPS daemon of a card that is about to change, and waits for that.
func (a *Agent) quiesce(ctx context.Context, card gpu.UUID) error {
	if !slices.ContainsFunc(a.mpsUnits(), func(u offer.Unit) bool { return u.Key.GPU == card }) {
		return nil
	}
	a.sharing.mu.Lock()
	a.sharing.quiesced[card] = true
	a.sharing.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, quiesceWithin)
	defer cancel()
	if err := a.sentDaemons(ctx); err != nil {
		return fmt.Errorf("end the MPS daemon of %s: %w", card, err)
	}
	for {
		statuses, err := a.sharing.daemons.Status(ctx)
		if err != nil {
			return fmt.Errorf("end the MPS daemon of %s: %w", card, err)
		}
		if !slices.ContainsFunc(statuses, func(s mps.Status) bool { return s.GPU == card }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the MPS daemon of %s: it still runs after %s", card, quiesceWithin)
		case <-a.clock.After(quiesceStep):
		}
	}
}

// unquiesce lets daemons start again where a unit still wants one.
func (a *Agent) unquiesce() {
	a.sharing.mu.Lock()
	clear(a.sharing.quiesced)
	a.sharing.mu.Unlock()
	a.sharing.poke()
}

// quiesceForReset ends the MPS daemon of a GPU that is about to be reset, until resumeAfterReset.
func (a *Agent) quiesceForReset(ctx context.Context, id gpu.UUID) error {
	a.sharing.mu.Lock()
	a.sharing.resetting[id] = true
	a.sharing.mu.Unlock()
	return a.quiesce(ctx, id)
}

// resumeAfterReset lets the daemon start again.
func (a *Agent) resumeAfterReset(id gpu.UUID) {
	a.sharing.mu.Lock()
	delete(a.sharing.resetting, id)
	delete(a.sharing.quiesced, id)
	a.sharing.mu.Unlock()
	a.sharing.poke()
}
