package gangs

import (
	"errors"
	"fmt"
)

// errGivenUp is why a member is not bound whose plan has ended.
var errGivenUp = errors.New("the plan of the gang was given up")

// refusal returns the reason of a refusal of members that were reserved, with its number. Each one is different. The caller holds the
// lock.
//
// The queue of the scheduler may lose such a pod: it is taken from the queue again before it counts as returned to it, and dropped
// (kubernetes/kubernetes#139186; 1.37.1, pkg/scheduler/backend/queue/scheduling_queue.go:1081, 1140). It comes back with the next update
// of the pod. The scheduler itself makes one, when it writes the reason to the pod's condition, but only where the condition differs from
// the one before.
func (r *registry) refusal(reason error) error {
	r.refusals++
	return fmt.Errorf("%w (refusal %d of this scheduler)", reason, r.refusals)
}
