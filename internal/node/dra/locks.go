package dra

import (
	"context"
	"sync"
	"time"
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
	// since is when a call got the lock last.
	since time.Time
}

// busyError is a lock that a call before has had since a time.
type busyError struct {
	error
	since time.Time
}

func (e *busyError) Unwrap() error { return e.error }

// lock waits for the calls before it that work on the claim, or returns a busyError with the error of ctx.
func (l *claimLocks) lock(ctx context.Context, uid string, now func() time.Time) (unlock func(), err error) {
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
		l.mu.Lock()
		busy := &busyError{ctx.Err(), one.since}
		l.mu.Unlock()
		leave()
		return nil, busy
	}
	// Both may have been true.
	if err := ctx.Err(); err != nil {
		one.free <- struct{}{}
		leave()
		return nil, &busyError{err, now()}
	}
	l.mu.Lock()
	one.since = now()
	l.mu.Unlock()
	return func() {
		one.free <- struct{}{}
		leave()
	}, nil
}
