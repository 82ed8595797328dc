package publish

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// round is the state of Run.
type round struct {
	*Publisher
	// follow is the time until the slices are published again after a registration; zero for none.
	follow      time.Duration
	followTimer <-chan time.Time
	followFor   time.Duration
	// wait is the time until the next retry, and zero without a failure.
	wait   time.Duration
	retryC <-chan time.Time
	// pool is what was published last, and published is false before that.
	pool      resourceslice.Pool
	published bool
	// checking is true while a check is under way, and stale when its result says nothing about pool.
	checking bool
	stale    bool
	checked  chan error
	checks   sync.WaitGroup
	// handled are the disabled features that pool takes into account.
	handled []string
}

// followC delivers the end of the time follow.
func (r *round) followC() <-chan time.Time {
	if r.follow > lastFollow {
		r.follow = 0
	}
	if r.follow != r.followFor {
		r.followFor, r.followTimer = r.follow, nil
		if r.follow > 0 {
			r.followTimer = r.deps.Clock.After(r.follow)
		}
	}
	return r.followTimer
}

// publish passes the present slices to the library, and begins a check.
func (r *round) publish(ctx context.Context) {
	r.retryC = nil
	disabled := r.disabledFeatures()
	pool, err := r.deps.Slices(disabled)
	if err != nil {
		r.fail(fmt.Errorf("compute the slices: %w", err))
		return
	}
	err = r.deps.Target.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{r.deps.Pool: pool}})
	switch {
	case err == nil:
	case ctx.Err() != nil || r.deps.Waiting(err):
		return
	default:
		r.fail(err)
		return
	}
	r.pool, r.published, r.handled = pool, true, disabled
	r.check(ctx)
}

// takeWrite reads the slices after a write.
func (r *round) takeWrite(ctx context.Context) {
	if r.published {
		r.check(ctx)
	}
}

// check reads the slices beside the loop, one check at a time.
func (r *round) check(ctx context.Context) {
	if r.checking {
		r.stale = true
		return
	}
	r.checking = true
	pool := r.pool
	r.checks.Go(func() {
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		defer cancel()
		r.checked <- r.deps.Check(limited, pool)
	})
}

// takeCheck takes the result of a check.
func (r *round) takeCheck(ctx context.Context, err error) {
	r.checking = false
	if r.stale {
		r.stale = false
		r.check(ctx)
		return
	}
	if err != nil {
		r.retryLater()
		if r.wait > 2*firstRetry { // The library has had its time.
			r.report(err)
		}
		return
	}
	r.mu.Lock()
	r.failure, r.seen = nil, r.deps.Clock.Now()
	r.mu.Unlock()
	r.wait, r.retryC = 0, nil
	r.report(nil)
}

// takeFailure takes an error of the library.
func (r *round) takeFailure(ctx context.Context) {
	r.mu.Lock()
	failure := r.failure
	r.mu.Unlock()
	if failure != nil {
		r.fail(failure)
	}
	if disabled := r.disabledFeatures(); !slices.Equal(disabled, r.handled) && r.published {
		r.publish(ctx)
		r.report(failure)
	}
}

func (r *round) fail(err error) {
	r.retryLater()
	r.report(err)
}

// retryLater plans the next attempt, unless one is planned.
func (r *round) retryLater() {
	if r.retryC != nil {
		return
	}
	r.wait = min(max(2*r.wait, firstRetry), lastRetry)
	r.retryC = r.deps.Clock.After(r.wait)
}

// report replaces the problems: the failure, if any, and the features that the API server does not have.
func (r *round) report(failure error) {
	var problems []gpu.Cause
	if failure != nil {
		problems = append(problems, gpu.Cause{Code: "DRA_PUBLISH_FAILED",
			Message: fmt.Sprintf("the ResourceSlices of pool %s are not in the API server as they should be, so the scheduler uses old ones or none: %v; the agent tries again", r.deps.Pool, failure)})
	}
	if disabled := r.disabledFeatures(); len(disabled) > 0 {
		problems = append(problems, gpu.Cause{Code: "DRA_FEATURE_DISABLED",
			Message: fmt.Sprintf("the API server has dropped fields of the ResourceSlices of pool %s; enable the feature gates %s in the API server and the scheduler, or leave it: devices that need them are not published",
				r.deps.Pool, strings.Join(disabled, ", "))})
	}
	r.deps.Report(Source, problems...)
}
