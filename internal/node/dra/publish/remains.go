package publish

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
	"k8s.io/utils/clock"
)

// remains is the source of the problem that slices of an earlier agent may be left.
const remains = "dra remains"

const (
	// firstClean and lastClean bound the time between two attempts to delete the slices of an earlier agent.
	firstClean = time.Second
	lastClean  = 30 * time.Second
	// cleanLimit is how long an attempt may take.
	cleanLimit = 10 * time.Second
)

// Remains deletes the slices that an earlier agent has left, while no device is allocated through DRA.
type Remains struct {
	Checker
	// InUse reports whether a device is allocated through DRA; Changed subscribes to its changes.
	InUse   func() bool
	Changed func() *signal.Subscription
	// Published returns the GPUs that slices may have.
	Published func() []gpu.UUID
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// AwaitUse returns true when a device is allocated through DRA, and false when ctx ends before. Until then it deletes the slices of
// the node, which an earlier agent has left, and reads whether they are gone.
func (s *Remains) AwaitUse(ctx context.Context) bool {
	changed := s.Changed()
	defer changed.Close()
	defer s.Report(remains)
	var retry <-chan time.Time
	wait := firstClean
	for clean := false; ; {
		if s.InUse() {
			return true
		}
		if !clean && retry == nil {
			if clean = s.clean(ctx); !clean {
				retry, wait = s.Clock.After(wait), min(2*wait, lastClean)
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed.C():
		case <-retry:
			retry = nil
		}
	}
}

// clean deletes the slices of the node, if there are any, and reads them again. It returns whether none is left.
func (s *Remains) clean(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	left, err := s.list(ctx)
	if err == nil && len(left) > 0 {
		if err = Remove(ctx, s.Client, s.Driver, s.Node); err == nil {
			left, err = s.list(ctx)
			s.Log.Info("Deleted the ResourceSlices of an earlier agent, since no GPU is allocated through DRA", "left", len(left))
		}
	}
	published := s.Published()
	switch {
	case err == nil:
		s.Report(remains)
		return len(left) == 0
	case len(published) > 0:
		s.Report(remains, gpu.Cause{Code: "DRA_SLICES_REMAIN", Message: fmt.Sprintf(
			"the GPUs %v are not advertised to the kubelet, because ResourceSlices of an earlier agent may still have them: %v; the agent tries again", published, err)})
		return false
	}
	// Without the rights for slices, which a node without DRA does not need, no agent of this cluster has published any.
	return apierrors.IsForbidden(err)
}
