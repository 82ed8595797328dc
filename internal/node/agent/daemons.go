package agent

import (
	"context"
	"time"
)

// sendDaemons is the only sender of the set of wanted MPS daemons, so that no older set replaces a newer one. It sends
// the set when the units or the quiesced GPUs have changed, when someone asks for it, and again after a failure. Before
// the ledger was compared it sends on request only: no GPU is known by then, and a daemon that is not wanted
// ends its clients.
func (a *Agent) sendDaemons(ctx context.Context) error {
	compared, changed := a.compared, (chan struct{})(nil)
	var again <-chan time.Time
	for {
		var done chan error
		select {
		case <-ctx.Done():
			return nil
		case done = <-a.sharing.asks:
		case <-compared:
			compared, changed = nil, a.sharing.resend
		case <-changed:
		case <-again:
		}
		err := a.setDaemons(ctx)
		again = nil
		if err != nil {
			again = a.clock.After(sliceRetry)
		}
		if done != nil {
			done <- err
		}
	}
}

// sentDaemons returns when a set that was computed after the call is with the supervisor.
func (a *Agent) sentDaemons(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case a.sharing.asks <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
