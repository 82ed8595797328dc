package gangs

import (
	"cmp"
	"time"
)

// Limits are times after which the plugin stops waiting, and amounts of work after which it stops planning. The zero value of each stands
// for its default.
type Limits struct {
	// Look is how often the plugin looks for what has waited too long. The default is 1 s.
	Look time.Duration
	// Reserve is how long a plan is kept while no further member is reserved. The default is 10 s.
	Reserve time.Duration
	// Release is how long a gang can be bound in part, with no further member bound, before its members are deleted. The time does not run
	// while the others are being bound and no binding has failed. The default is 20 s.
	Release time.Duration
	// Rebind is how long the place of a member is held from the first time that its binding fails. The default is 30 s.
	Rebind time.Duration
	// Lost is how long the place of a lost member is held, and how long it is remembered which pods of a gang have succeeded after its
	// last one has ended. The default is 5 minutes.
	Lost time.Duration
	// Repeat is how long members repeat the refusal of the first one, which plans again whenever anything has changed. The default is 5 s.
	Repeat time.Duration
	// Mask is how long it is remembered at first which nodes other plugins refuse; it doubles while plans fail. The default is 10 s.
	Mask time.Duration
	// Retry is how long a gang waits when a third plan in a row has failed; it doubles up to 16 times that. The default is 500 ms.
	Retry time.Duration
	// Say is how long a gang waits for its members before an event says so, once. The default is 30 s.
	Say time.Duration
	// Outage is how long a scheduler is away at most while it binds a gang: one whose members were bound earlier before the start of this
	// scheduler was whole. The default is 5 minutes.
	Outage time.Duration
	// Starve is how long a gang does not fit before the first one in line gets a reservation. The default is 1 minute; negative is never.
	Starve time.Duration
	// Hopeless is how long a gang gets no reservation that would not fit with one. The default is 1 minute.
	Hopeless time.Duration
	// Preempt is how long a gang waits at first before it ends further pods, from when those have ended that it has ended; it doubles up
	// to 16 times that. The default is 30 s.
	Preempt time.Duration
	// Unknown is how long a reservation is kept whose start is not known, and Period how long after the beginning of such a time the next
	// one begins, for any gang. The defaults are 5 and 30 minutes.
	Unknown time.Duration
	Period  time.Duration
	// Overdue is how long a reservation is kept after all pods should have ended that it waits for, and how long a pod is waited for that
	// has ended but for its finalizers. The default is 30 s.
	Overdue time.Duration
	// CycleSteps is how much work of planning a scheduling cycle does itself, in steps of gang.Budget: what takes more is planned beside
	// the cycles. The default is 1<<21, some 30 ms.
	CycleSteps uint64
	// BesideSteps is how much work of planning is done beside the cycles before a gang is planned class by class, or refused. The default
	// is 1<<31, some 30 s.
	BesideSteps uint64
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Look:        cmp.Or(l.Look, time.Second),
		Reserve:     cmp.Or(l.Reserve, 10*time.Second),
		Release:     cmp.Or(l.Release, 20*time.Second),
		Rebind:      cmp.Or(l.Rebind, 30*time.Second),
		Lost:        cmp.Or(l.Lost, 5*time.Minute),
		Repeat:      cmp.Or(l.Repeat, 5*time.Second),
		Mask:        cmp.Or(l.Mask, 10*time.Second),
		Retry:       cmp.Or(l.Retry, 500*time.Millisecond),
		Say:         cmp.Or(l.Say, 30*time.Second),
		Outage:      cmp.Or(l.Outage, 5*time.Minute),
		Starve:      cmp.Or(l.Starve, time.Minute),
		Hopeless:    cmp.Or(l.Hopeless, time.Minute),
		Preempt:     cmp.Or(l.Preempt, 30*time.Second),
		Unknown:     cmp.Or(l.Unknown, 5*time.Minute),
		Period:      cmp.Or(l.Period, 30*time.Minute),
		Overdue:     cmp.Or(l.Overdue, 30*time.Second),
		CycleSteps:  cmp.Or(l.CycleSteps, 1<<21),
		BesideSteps: cmp.Or(l.BesideSteps, 1<<31),
	}
}

const (
	// freeFailures is how many plans in a row can fail before the gang waits until the next one.
	freeFailures = 2
	// mostDoublings bounds how long it waits.
	mostDoublings = 4
)

// retryAfter is how long a gang waits after so many plans in a row have failed.
func (l *Limits) retryAfter(failures int) time.Duration {
	if failures <= freeFailures {
		return 0
	}
	return l.Retry << min(failures-freeFailures-1, mostDoublings)
}

// pauseAfter is how long a gang waits that was refused, by how long its plan took: large ones take a small part of the scheduler's time,
// whatever changes.
func pauseAfter(took time.Duration) time.Duration {
	if took < 20*time.Millisecond {
		return 0
	}
	return min(10*took, 30*time.Second)
}

// maskFor is how long it is remembered which nodes other plugins refuse.
func (l *Limits) maskFor(failures int) time.Duration { return l.Mask << min(failures, mostDoublings) }
