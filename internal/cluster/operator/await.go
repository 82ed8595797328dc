package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
)

const (
	// attemptTimeout bounds one attempt: an API server that has stopped accepts connections and does not respond.
	attemptTimeout = 10 * time.Second
	// attemptPause is the time between two attempts.
	attemptPause = 2 * time.Second
)

// awaitAPI calls check until the API server has answered it, and returns its error. An operator that ended instead would be restarted
// by the kubelet after up to 5 minutes (CrashLoopBackOff), also when the API server had been back for long.
func awaitAPI(ctx context.Context, deps Deps, check func(context.Context) error) error {
	attempt := func() error {
		ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		return check(ctx)
	}
	err := attempt()
	if !away(err) {
		return err
	}
	for ctx.Err() == nil && away(err) {
		deps.Log.Warn("Waiting for the API server", "server", deps.API.Host, "error", err, "pause", attemptPause)
		select {
		case <-ctx.Done():
		case <-deps.Clock.After(attemptPause):
			err = attempt()
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for the API server: %w", errors.Join(ctx.Err(), err))
	}
	return err
}

// away reports whether an error is none of the operator's or the cluster's state, so that another attempt can succeed.
func away(err error) bool {
	if _, newer := errors.AsType[*definitions.NewerError](err); err == nil || newer {
		return false
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
	}
	return true
}
