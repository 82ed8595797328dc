package mpssync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// claimed returns the units of the whole GPUs that claims have. Their mode is Unknown while it is not known what the claim wants.
func (s *Syncer) claimed() []offer.Unit {
	var units []offer.Unit
	for _, h := range s.deps.Holdings() {
		if h.Holder.Kind != gpu.HolderClaim || !h.Key.Whole() {
			continue
		}
		unit := offer.Unit{Key: h.Key.Unshared(), Use: offer.Use{API: offer.DRA}}
		switch {
		case h.MPS.Wanted():
			unit.Use.Mode, unit.Use.Replicas = offer.MPS, 1
			unit.Use.MPSLimits = h.MPS
		case h.TimeSlice == "":
			unit.Use.Mode, unit.Use.Replicas = offer.Unknown, 1
		}
		units = append(units, unit)
	}
	return units
}

// shared returns the units of claims that want a daemon, or of which it is not known.
func (s *Syncer) shared() []offer.Unit {
	return slices.DeleteFunc(s.claimed(), func(u offer.Unit) bool { return u.Use.Mode == offer.Whole })
}

// units returns the settled units, with those of claims in place of those of the same GPUs.
func (s *Syncer) units() []offer.Unit {
	settled, claimed := s.deps.Units(), s.claimed()
	held := map[gpu.UUID]bool{}
	for _, unit := range claimed {
		held[unit.Key.GPU] = true
	}
	units := slices.DeleteFunc(slices.Clone(settled), func(u offer.Unit) bool { return held[u.Key.GPU] })
	return append(units, claimed...)
}

func hasUnknown(units []offer.Unit) bool {
	return slices.ContainsFunc(units, func(u offer.Unit) bool { return u.Use.Mode == offer.Unknown })
}

// Await returns when the MPS daemon of a GPU, which a claim has in the ledger, runs with its limits, or, for a claim without MPS, when no
// daemon runs on the GPU. At the end of ctx it returns the reason why that is not so. It asks the supervisor only when a daemon is wanted
// or may run.
func (s *Syncer) Await(ctx context.Context, id gpu.UUID, limits gpu.MPSLimits) error {
	if !limits.Wanted() && !s.mayRun(id) {
		return nil
	}
	if limits.Wanted() && s.deps.Hardware.Current().GPU(id) == nil {
		return fmt.Errorf("GPU %s cannot be shared by MPS: its vendor has no MPS, or it was removed; remove mode mps from the configuration", id)
	}
	for {
		why := s.check(ctx, id, limits)
		if why == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return why
		case <-s.deps.Clock.After(quiesceStep):
		}
	}
}

// check returns why a GPU does not have the daemon that its claim wants, or none, after the supervisor has accepted the present set.
func (s *Syncer) check(ctx context.Context, id gpu.UUID, limits gpu.MPSLimits) error {
	ctx = context.WithoutCancel(ctx) // The end of a claim's time is no failure of the supervisor, whose calls are bounded.
	statuses, err := []mps.Status(nil), s.send(ctx, false)
	if err == nil || errors.Is(err, errWithheld) {
		statuses, err = s.deps.Supervisor.Status(ctx)
	}
	at := slices.IndexFunc(statuses, func(status mps.Status) bool { return status.GPU == id })
	switch {
	case err != nil && limits.Wanted():
		return fmt.Errorf("GPU %s has no MPS daemon: %w", id, err)
	case err != nil:
		return fmt.Errorf("an MPS daemon of an earlier holder may still run on GPU %s: %w", id, err)
	case at < 0 && limits.Wanted():
		return fmt.Errorf("the MPS daemon of GPU %s is not started yet", id)
	case at < 0:
		s.forget(id)
		return nil
	case !limits.Wanted():
		return fmt.Errorf("the MPS daemon of an earlier holder of GPU %s has not ended yet%s", id, reasonOf(statuses[at]))
	case statuses[at].State != mps.Ready:
		return fmt.Errorf("the MPS daemon of GPU %s is %s%s", id, statuses[at].State, reasonOf(statuses[at]))
	}
	return nil
}

func reasonOf(status mps.Status) string { return strings.TrimSuffix(": "+status.Reason, ": ") }

// Ending returns why a GPU that needs no MPS daemon cannot be used by other processes: one still runs on it. It is empty when none does.
func (s *Syncer) Ending(id gpu.UUID) string {
	status, ok := s.Status(id)
	if !ok || slices.ContainsFunc(s.Units(), func(u offer.Unit) bool { return u.Key.GPU == id }) {
		return ""
	}
	return "the MPS daemon of an earlier use has not ended yet" + reasonOf(status)
}

// noteAsked records that a set is about to be sent. The lock is not held.
func (s *Syncer) noteAsked(wanted []mps.Wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range wanted {
		s.asked[w.GPU] = math.MaxInt64
	}
}

// noteAccepted records the generation from which on a report without a GPU shows that its daemon has ended. The lock is held.
func (s *Syncer) noteAccepted(wanted []mps.Wanted, generation int64) {
	if generation == mps.NoGeneration {
		return
	}
	for id, from := range s.asked {
		if from == math.MaxInt64 && !slices.ContainsFunc(wanted, func(w mps.Wanted) bool { return w.GPU == id }) {
			s.asked[id] = generation
		}
	}
}

// noteEnded removes the GPUs of which a report shows that their daemons have ended. The lock is held.
func (s *Syncer) noteEnded(report mps.Report) {
	maps.DeleteFunc(s.asked, func(id gpu.UUID, from int64) bool {
		return report.Generation >= from && !slices.ContainsFunc(report.GPUs, func(status mps.Status) bool { return status.GPU == id })
	})
}

func (s *Syncer) forget(id gpu.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[id] != math.MaxInt64 { // It is not wanted again.
		delete(s.asked, id)
	}
}

// mayRun reports whether a GPU may have a daemon now.
func (s *Syncer) mayRun(id gpu.UUID) bool {
	_, reported := s.Status(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, asked := s.asked[id]
	return asked || reported
}

// withoutSupervisor reports whether an error only says that there is no supervisor, which is none while no daemon is wanted and at most
// claims are unknown: what they want, the first report of a supervisor causes to be asked again.
func (s *Syncer) withoutSupervisor(err error, wanted []mps.Wanted) bool {
	return len(wanted) == 0 && errors.Is(err, mps.ErrUnavailable) && !hasUnknown(s.deps.Units())
}
