package nodeapi

import (
	"context"
	"hash/fnv"
	"time"

	"k8s.io/utils/clock"
)

const (
	// retryFirst is the pause after the first failure; each further one doubles it.
	retryFirst = time.Second
	// retryMax is the longest pause.
	retryMax = time.Minute
	// callTimeout bounds one call to the API server.
	callTimeout = 10 * time.Second
)

// Retry is the one retry policy: pauses that double from a second to a minute. Up to a quarter of a pause
// depends on the name of the node, so that the agents of a cluster do not retry at the same moments.
type Retry struct {
	Clock    clock.WithTicker
	NodeName string
}

// Pause returns the time to wait after a number of consecutive failures, at least one.
func (r Retry) Pause(failures int) time.Duration {
	pause := retryFirst << min(max(failures-1, 0), 6)
	return min(pause+r.part(pause/4), retryMax)
}

// part returns the part of a duration that depends on the name of the node.
func (r Retry) part(of time.Duration) time.Duration {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(r.NodeName))
	return of * time.Duration(hash.Sum32()%1000) / 1000
}

// Spread waits for a part of limit that depends on the name of the node, before what one event makes all agents of a cluster do. It returns
// the error of ctx when that ends first.
func (r Retry) Spread(ctx context.Context, limit time.Duration) error {
	return sleep(ctx, r.Clock, r.part(limit))
}

// Do calls attempt until it returns true or ctx ends. Only the latter is an error.
func (r Retry) Do(ctx context.Context, attempt func(context.Context) (done bool)) error {
	for failures := 1; ; failures++ {
		if done := attempt(ctx); done {
			return nil
		}
		if err := sleep(ctx, r.Clock, r.Pause(failures)); err != nil {
			return err
		}
	}
}

// sleep returns after the pause, or with the error of ctx when that ends.
func sleep(ctx context.Context, clock clock.WithTicker, pause time.Duration) error {
	if pause <= 0 {
		return ctx.Err()
	}
	timer := clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}
