package gangs

import "time"

// wakeup is when a member is brought back to the queue to plan its gang.
type wakeup struct {
	// wake is the time; zero is never.
	wake time.Time
	// afterHold is true where it is brought back, too, when more holds have ended than freed.
	afterHold bool
	freed     uint64
	// afterPlan is true where it is brought back, too, when the plan ends: a member came that is not in it.
	afterPlan bool
}

// wakeAt has a member brought back at a time, or earlier.
func (w *wakeup) wakeAt(when time.Time) {
	if w.wake.IsZero() || when.Before(w.wake) {
		w.wake = when
	}
}

// cancelWake has no member brought back at a time.
func (w *wakeup) cancelWake() { w.wake = time.Time{} }

// wakeAfterHold tells whether a member is brought back when more holds have ended than now.
func (w *wakeup) wakeAfterHold(wanted bool, freed uint64) { w.afterHold, w.freed = wanted, freed }

// woken tells whether a member is to be brought back to plan the gang, once.
func (g *gang) woken(now time.Time, freed uint64) bool {
	woken := false
	if !g.wake.IsZero() && !now.Before(g.wake) {
		g.cancelWake()
		woken = true
	}
	if g.afterHold && g.freed != freed {
		g.afterHold, woken = false, true
	}
	if g.afterPlan && g.plan == nil {
		g.afterPlan, woken = false, true
	}
	return woken
}

// backoff is how long a gang waits between two plans.
type backoff struct {
	// failures counts the plans in a row that could not be carried out, failure says why the last one could not.
	failures int
	failure  string
	// next is when the gang can be planned again.
	next time.Time
}

// planFailed notes that a plan could not be carried out, and tells whether the gang waits before the next one.
func (b *backoff) planFailed(reason string, now time.Time, limits *Limits) bool {
	b.failures++
	b.failure = reason
	wait := limits.retryAfter(b.failures)
	if wait > 0 {
		b.next = now.Add(wait)
	}
	return wait > 0
}
