package drasync

import (
	"context"
	"errors"

	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// Stats returns what the metrics show of the driver. A nil Syncer, that of an agent without an API server, does nothing.
func (s *Syncer) Stats() dra.Stats {
	if s == nil || !s.active.Load() {
		return dra.Stats{Age: -1}
	}
	stats := dra.Stats{Active: true, Calls: s.calls.List(), TwoAPIs: int(s.tainted.Load()), Age: -1}
	if at := s.publisher.Published(); !at.IsZero() {
		stats.Age = max(0, s.deps.Clock.Since(at))
	}
	s.mu.Lock()
	stats.Slices = len(s.last)
	s.mu.Unlock()
	return stats
}

// Published reports whether a kubelet has registered the driver, and the API server has slices of the node.
// A nil Syncer has none.
func (s *Syncer) Published() bool {
	if s == nil {
		return false
	}
	select {
	case <-s.registered.Done():
	default:
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.last) > 0 && !s.publisher.Published().IsZero()
}

// observe counts a call of the kubelet, and reports a prepare that failed on the claim; the kubelet reports it on the pod. It does not
// report one that the kubelet has ended, which it repeats.
func (s *Syncer) observe(call dra.Call) {
	reason := reasonOf(call.Err)
	s.calls.Observe(string(call.Operation), call.Took, reason)
	if call.Operation == dra.Prepare && call.Err != nil && reason != "canceled" {
		s.deps.NotPrepared(call.Namespace, call.Name, call.UID, call.Err.Error())
	}
}

// notReadyError is a device that containers cannot use yet.
type notReadyError struct{ error }

// reasonOf returns the reason of an error as the metrics name it; empty without an error.
func reasonOf(err error) string {
	var blocked *ledger.BlockedError
	var refused *dra.RefusedError
	var unready *notReadyError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &blocked):
		return "held"
	case errors.As(err, &refused):
		return "refused"
	case errors.As(err, &unready), errors.As(err, new(*dra.LateError)):
		return "not_ready"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	case errors.Is(err, ledger.ErrFollows), errors.Is(err, ledger.ErrSuperseded):
		return "other_agent"
	}
	return "other"
}
