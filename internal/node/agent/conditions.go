package agent

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// The types of a GPUNode's conditions.
const (
	conditionConfig = "ConfigAccepted"
	conditionMIG    = "MIGApplied"
)

// maxConditionMessage is the API's limit, in bytes.
const maxConditionMessage = 32768

// conditions are those of the GPUNode, each with the time at which it last turned. A
// turn is an event too.
type conditions struct {
	clock   clock.PassiveClock
	events  *nodeEvents
	changed func()

	mu   sync.Mutex
	list []metav1.Condition
}

func (c *conditions) set(kind string, status metav1.ConditionStatus, reason, message string) {
	if len(message) > maxConditionMessage {
		message = message[:maxConditionMessage]
	}
	c.mu.Lock()
	changed := meta.SetStatusCondition(&c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
	c.mu.Unlock()
	if !changed {
		return
	}
	if status == metav1.ConditionTrue {
		c.events.normal(kind+reason, message)
	} else {
		c.events.warning(kind+reason, message)
	}
	c.changed()
}

// clear forgets a condition that does not apply any more.
func (c *conditions) clear(kind string) {
	c.mu.Lock()
	changed := meta.RemoveStatusCondition(&c.list, kind)
	c.mu.Unlock()
	if changed {
		c.changed()
	}
}

func (c *conditions) all() []metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}
