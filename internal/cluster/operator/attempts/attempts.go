// Package attempts knows the objects that the operator cannot bring to what is wanted.
//
// It guarantees, for each object:
//   - After a failed attempt, and after an edit of others that was undone, the next attempt waits: 100 ms at first, then twice as long each
//     time, up to a minute. What wakes a controller does not shorten that.
//   - The log has one line for each change of the reason, and one when the object is as wanted again.
//   - It is among [Objects.NotKept] once several attempts in succession failed, until it is as wanted: at once after a failure, and
//     after 5 minutes without another edit where others edit it again and again.
//
// It holds state in memory only: after a restart of the operator the attempts begin again. It must not import packages of Berth.
package attempts

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// firstDelay and lastDelay are the shortest and the longest time between two attempts.
	firstDelay = 100 * time.Millisecond
	lastDelay  = time.Minute
	// inVain is how many attempts in succession an object takes until it is reported as not kept.
	inVain = 5
	// calm is how long others leave an object alone until their next edit counts as the first one.
	calm = 5 * time.Minute
)

// Object names an object that the operator keeps.
type Object struct {
	Kind      string
	Namespace string
	Name      string
}

// String returns the kind, and the name with its namespace.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Problem is an object that is not as wanted, and why.
type Problem struct {
	Object Object
	Reason string
	// Edited is true where others edit it again and again, and false where an attempt has failed.
	Edited bool
}

// state is what is known of an object that is not as wanted, or was edited a short time ago.
type state struct {
	attempts int
	// last is the time of the last attempt, and next that of the next one.
	last time.Time
	next time.Time
	// err is the error of the last attempt; nil after one that undid an edit of others.
	err error
	// reason is what the log knows.
	reason string
	// edited is true once an edit of others was undone.
	edited bool
}

// Objects has all of them. Its methods can be called by several goroutines.
type Objects struct {
	clock   clock.PassiveClock
	log     *slog.Logger
	changed chan struct{}

	mu     sync.Mutex
	states map[Object]*state
	absent map[Object]string
}

// New returns an empty set.
func New(clock clock.PassiveClock, log *slog.Logger) *Objects {
	return &Objects{clock: clock, log: log, changed: make(chan struct{}, 1), states: map[Object]*state{}, absent: map[Object]string{}}
}

// Attempt calls try unless the object has to wait. It returns the time until the object needs another look, 0 for none, and the error of
// the last attempt, also while it waits. The end of ctx is no failure.
func (o *Objects) Attempt(ctx context.Context, of Object, try func() error) (after time.Duration, err error) {
	if wait, err := o.waiting(of); wait > 0 {
		return wait, err
	}
	err = try()
	switch {
	case ctx.Err() != nil:
		return 0, nil
	case err != nil:
		return o.failed(of, err), err
	}
	return o.succeeded(of), nil
}

func (o *Objects) waiting(of Object) (time.Duration, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.states[of]
	if s == nil {
		return 0, nil
	}
	return s.next.Sub(o.clock.Now()), s.err
}

// again counts an attempt; the mutex is held.
func (o *Objects) again(of Object) *state {
	s, now := o.states[of], o.clock.Now()
	if s == nil || s.err == nil && now.Sub(s.last) >= calm {
		s = &state{}
		o.states[of] = s
	}
	s.attempts++
	s.last, s.next = now, now.Add(min(firstDelay<<min(s.attempts-1, 16), lastDelay))
	if s.attempts == inVain {
		o.signal()
	}
	return s
}

func (o *Objects) failed(of Object, err error) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.again(of)
	s.err = err
	// An object that has changed since it was read is read again, and nothing is wrong.
	if !apierrors.IsConflict(err) || s.attempts >= inVain {
		if o.reason(s, err.Error()) {
			o.log.Error("Cannot bring an object in line; trying again, with growing delays", "object", of.String(), "err", err)
		}
	}
	return s.next.Sub(s.last)
}

// succeeded forgets an object that is as wanted, but remembers for some time that others have edited it.
func (o *Objects) succeeded(of Object) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.states[of]
	if s == nil {
		return 0
	}
	if left := s.last.Add(calm).Sub(o.clock.Now()); s.err == nil && left > 0 {
		return left
	}
	o.end(of, s)
	return 0
}

// end forgets what is known of an object that is in line again. The caller holds the lock.
func (o *Objects) end(of Object, s *state) {
	if s.attempts >= inVain {
		o.log.Info("An object is in line again", "object", of.String(), "attempts", s.attempts)
		o.signal()
	}
	delete(o.states, of)
}

// Undid notes, within an attempt, that an edit of others was undone. It returns true when that is to be reported: the first time, and when
// the edit is another one than the last.
func (o *Objects) Undid(of Object, edit string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.states[of]; s != nil && s.err != nil && !s.edited {
		o.end(of, s) // Only failures came before, which are no edits of others.
	}
	s := o.again(of)
	s.err, s.edited = nil, true
	if s.attempts == inVain {
		o.log.Warn("Others edit an object again and again; undoing it with growing delays", "object", of.String(), "edit", edit)
	}
	return o.reason(s, edit)
}

// Forget forgets an object that the operator does not keep any more.
func (o *Objects) Forget(of Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.states[of]; s != nil && s.attempts >= inVain {
		o.signal()
	}
	delete(o.states, of)
	o.setAbsent(of, "")
}

// Numbers differ between two errors of one cause: ports, versions, times.
var numbers = regexp.MustCompile(`[0-9]+`)

// reason sets the reason of a state, and reports whether it is another one.
func (o *Objects) reason(s *state, reason string) bool {
	same := numbers.ReplaceAllString(s.reason, "0") == numbers.ReplaceAllString(reason, "0")
	s.reason = reason
	if !same && s.attempts > inVain {
		o.signal()
	}
	return !same
}

// SetAbsent notes what of an object is absent since the API server does not have it, and that this is no problem; "" for nothing.
func (o *Objects) SetAbsent(of Object, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setAbsent(of, what)
}

func (o *Objects) setAbsent(of Object, what string) {
	if o.absent[of] == what {
		return
	}
	if what == "" {
		delete(o.absent, of)
	} else {
		if !slices.Contains(slices.Collect(maps.Values(o.absent)), what) {
			o.log.Info("The API server drops a field, which is left out", "object", of.String(), "field", what)
		}
		o.absent[of] = what
	}
	o.signal()
}

// NotKept returns the objects that several attempts could not bring to what is wanted, sorted.
func (o *Objects) NotKept() []Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []Problem
	for of, s := range o.states {
		switch {
		case s.attempts < inVain:
		case s.err != nil:
			all = append(all, Problem{of, s.err.Error(), false})
		default:
			all = append(all, Problem{of, "others change it again and again: " + s.reason, true})
		}
	}
	slices.SortFunc(all, func(a, b Problem) int { return compare(a.Object, b.Object) })
	return all
}

// Absent returns the objects of which something is absent, sorted, by what it is.
func (o *Objects) Absent() map[string][]Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string][]Object{}
	for of, what := range o.absent {
		all[what] = append(all[what], of)
	}
	for _, objects := range all {
		slices.SortFunc(objects, compare)
	}
	return all
}

func compare(a, b Object) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Reconcile is [Objects.Attempt] for a reconciler, which may ask for another look itself. It returns no error: the queue would try again at
// other times, and log each.
func (o *Objects) Reconcile(ctx context.Context, of Object, keep func() (reconcile.Result, error)) (reconcile.Result, error) {
	var result reconcile.Result
	after, err := o.Attempt(ctx, of, func() (err error) {
		result, err = keep()
		return err
	})
	if err != nil {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	return reconcile.Result{RequeueAfter: Sooner(after, result.RequeueAfter)}, nil
}

// Sooner returns the shorter of two times until another look; 0 is none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Changed delivers after changes of what NotKept and Absent return.
func (o *Objects) Changed() <-chan struct{} { return o.changed }

func (o *Objects) signal() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}
