package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// SourceCalls is the source of the problem of calls that do not return.
const SourceCalls = "dra calls"

// hungCalls are the claims with a call that has not returned although its time is over, by UID, with what is wrong. The zero value is ready
// for use.
type hungCalls struct {
	mu     sync.Mutex
	claims map[string]string
}

// lock lets one call at a time work on a claim. When the call before it has not returned although its time is over, the error and a problem
// say so, until that call returns.
func (d *Driver) lock(ctx context.Context, who, uid string) (unlock func(), err error) {
	free, err := d.locks.lock(ctx, uid, d.deps.Clock.Now)
	if err == nil {
		return func() {
			d.hung.end(uid, d.deps.Report)
			free()
		}, nil
	}
	busy, ok := errors.AsType[*busyError](err)
	if !ok || d.deps.Clock.Since(busy.since) < prepareWithin {
		return nil, fmt.Errorf("%s: wait for another call for the same claim: %w", who, err)
	}
	text := fmt.Sprintf("%s: an earlier call of the kubelet for it has not returned since %s, and nothing is done twice: it waits for the disk with the agent's ledger; check that disk, and restart the agent when the disk answers",
		who, busy.since.UTC().Format(time.RFC3339))
	d.hung.add(uid, text, d.deps.Report)
	return nil, fmt.Errorf("%s (%w)", text, err)
}

func (h *hungCalls) add(uid, text string, report func(string, ...gpu.Cause)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.claims == nil {
		h.claims = map[string]string{}
	}
	h.claims[uid] = text
	h.report(report)
}

// end records that a call for a claim returns.
func (h *hungCalls) end(uid string, report func(string, ...gpu.Cause)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, hung := h.claims[uid]; hung {
		delete(h.claims, uid)
		h.report(report)
	}
}

// report reports all claims; the caller holds mu.
func (h *hungCalls) report(report func(string, ...gpu.Cause)) {
	var problems []gpu.Cause
	for _, uid := range slices.Sorted(maps.Keys(h.claims)) {
		problems = append(problems, gpu.Cause{Code: "DRA_CALL_HANGS", Message: h.claims[uid]})
	}
	report(SourceCalls, problems...)
}
