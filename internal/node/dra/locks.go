package dra

import (
	"context"
	"sync"
)

// claimLocks lets one call at a time work on a claim. The zero value is ready for use.
type claimLocks struct {
	mu    sync.Mutex
	locks map[string]*claimLock
}

type claimLock struct {
	// users are the calls that have or want the lock.
	users int
	// free has a token while no call has the lock.
	free chan struct{}
}

// lock waits for the calls before it that work on the claim, or returns the error of ctx.
func (l *claimLocks) lock(ctx context.Context, uid string) (unlock func(), err error) {
	l.mu.Lock()
	one := l.locks[uid]
	if one == nil {
		one = &claimLock{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		if l.locks == nil {
			l.locks = map[string]*claimLock{}
		}
		l.locks[uid] = one
	}
	one.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.locks, uid)
		}
	}
	select {
	case <-one.free:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	// Both may have been true.
	if err := ctx.Err(); err != nil {
		one.free <- struct{}{}
		leave()
		return nil, err
	}
	return func() {
		one.free <- struct{}{}
		leave()
	}, nil
}
