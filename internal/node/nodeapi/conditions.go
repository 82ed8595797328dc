package nodeapi

import (
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/signal"
)

// The types of a GPUNode's conditions.
const (
	ConditionConfig = "ConfigAccepted"
	ConditionMIG    = "MIGApplied"
)

// maxConditionMessage is the API's limit, in bytes.
const maxConditionMessage = 32768

// Conditions are those of the GPUNode, each with the time at which its status last changed. Each change is an event
// too. This type only stores them; they are published with the rest of the GPUNode.
type Conditions struct {
	clock clock.PassiveClock
	event func(Event)

	mu      sync.Mutex
	list    []metav1.Condition
	changed signal.Broadcast
}

// NewConditions returns an empty list; event must not block.
func NewConditions(clock clock.PassiveClock, event func(Event)) *Conditions {
	return &Conditions{clock: clock, event: event}
}

// Set replaces the condition of that type.
func (c *Conditions) Set(kind string, status metav1.ConditionStatus, reason, message string) {
	if len(message) > maxConditionMessage {
		message = strings.ToValidUTF8(message[:maxConditionMessage], "")
	}
	c.mu.Lock()
	changed := meta.SetStatusCondition(&c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
	c.mu.Unlock()
	if changed {
		c.event(ConditionChanged(kind, status, reason, message))
		c.changed.Set()
	}
}

// Clear removes a condition that does not apply any more.
func (c *Conditions) Clear(kind string) {
	c.mu.Lock()
	changed := meta.RemoveStatusCondition(&c.list, kind)
	c.mu.Unlock()
	if changed {
		c.changed.Set()
	}
}

// All returns the conditions.
func (c *Conditions) All() []metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// Subscribe returns a subscription that is signalled after each change.
func (c *Conditions) Subscribe() *signal.Subscription { return c.changed.Subscribe() }
