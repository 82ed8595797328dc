package gangs

import (
	"errors"
	"fmt"
)

// errPreempted is why a pod that waits to be bound goes back to the queue for a gang of a higher priority.
var errPreempted = errors.New("preempted")

// errGivenUp is why a member is not bound whose plan has ended.
var errGivenUp = errors.New("the plan of the gang was given up")

// numbered returns the reason of a refusal of members that were reserved, with its number. Each one is different. The caller holds the
// lock.
//
// The queue of the scheduler may lose such a pod: it is taken from the queue again before it counts as returned to it, and dropped
// (kubernetes/kubernetes#139186; 1.37.1, pkg/scheduler/backend/queue/scheduling_queue.go:1081, 1140). It comes back with the next update
// of the pod. The scheduler itself makes one, when it writes the reason to the pod's condition, but only where the condition differs from
// the one before. The start of the scheduler is in it, so that it is none of the scheduler before.
func (r *registry) numbered(reason error) error {
	r.refusals++
	return fmt.Errorf("%w (refusal %d since %s)", reason, r.refusals, r.started.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// preemptedText returns why a pod that waits to be bound goes back to the queue for a gang of a higher priority.
func (r *registry) preemptedText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.numbered(errPreempted).Error()
}
