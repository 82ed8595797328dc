package nodeapi

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// eventQueue is how many events wait for the API server; further ones are dropped, since the condition and the log
	// say the same.
	eventQueue = 64
	// eventRepeat is how long the same event is not written again.
	eventRepeat = 10 * time.Minute
	// claimEvents is how many events about claims are written in each claimPeriod; further ones are dropped, since the log and, by the
	// kubelet, an event of the pod say the same.
	claimEvents = 10
	claimPeriod = time.Minute
	// eventAttempts is how often the write of an event is attempted.
	eventAttempts = 5
)

// Events writes events about the node and its claims, equal ones once in ten minutes. Create it with NewEvents, start it with Run.
type Events struct {
	api   dynamic.Interface
	retry Retry
	log   *slog.Logger
	queue chan Event
}

// NewEvents returns a writer of events. Without an API server, api is nil and events are dropped.
func NewEvents(api dynamic.Interface, retry Retry, log *slog.Logger) *Events {
	return &Events{api: api, retry: retry, log: log, queue: make(chan Event, eventQueue)}
}

// Publish queues an event. It never waits; while the queue is full, it drops the event.
func (e *Events) Publish(event Event) {
	if e.api == nil {
		return
	}
	select {
	case e.queue <- event:
	default:
	}
}

// Problem publishes the event about a new problem of the node, if there is one for its code.
func (e *Events) Problem(problem gpu.Cause) {
	switch {
	case problem.Code == "STATE_UNWRITABLE":
		e.Publish(StateUnwritable(problem.Message))
	case strings.HasPrefix(problem.Code, "STATE_"):
		e.Publish(StateLost(problem.Message))
	}
}

// ClaimNotPrepared publishes the event that a claim could not be prepared.
func (e *Events) ClaimNotPrepared(namespace, name, uid, message string) {
	e.Publish(ClaimNotPrepared(namespace, name, uid, message))
}

// Run writes the events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	written := map[Event]time.Time{}
	for {
		var event Event
		select {
		case <-ctx.Done():
			return nil
		case event = <-e.queue:
		}
		now := e.retry.Clock.Now()
		for old, at := range written {
			if now.Sub(at) >= eventRepeat {
				delete(written, old)
			}
		}
		if _, again := written[event]; again || event.about != (claim{}) && recentOfClaims(written, now) >= claimEvents {
			continue
		}
		if err := e.write(ctx, event, now); err != nil {
			if ctx.Err() == nil {
				e.log.Warn("Could not write event", "reason", event.reason, "note", event.note, "error", err)
			}
			continue
		}
		written[event] = now
	}
}

// recentOfClaims returns how many events about claims were written in the last claimPeriod.
func recentOfClaims(written map[Event]time.Time, now time.Time) int {
	n := 0
	for event, at := range written {
		if event.about != (claim{}) && now.Sub(at) < claimPeriod {
			n++
		}
	}
	return n
}

// write attempts the write several times, unless the API server refuses the event itself.
func (e *Events) write(ctx context.Context, event Event, now time.Time) error {
	object, attempts := e.object(event, now), 0
	var err error
	stopped := e.retry.Do(ctx, func(ctx context.Context) bool {
		attempts++
		err = e.create(ctx, object)
		return err == nil || attempts == eventAttempts || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
	})
	if stopped != nil {
		return stopped
	}
	return err
}

func (e *Events) create(ctx context.Context, object *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	events := schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	_, err := e.api.Resource(events).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // An attempt before this one succeeded without an answer.
	}
	return err
}

func (e *Events) object(event Event, now time.Time) *unstructured.Unstructured {
	node := e.retry.NodeName
	// The kubelet names a Node by its name where a UID belongs, and tools look for that.
	namespace, regarding := metav1.NamespaceDefault, map[string]any{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
	if about := event.about; about != (claim{}) {
		namespace = about.namespace
		regarding = map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": about.namespace, "name": about.name, "uid": about.uid}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event",
		"metadata": map[string]any{
			"name": fmt.Sprintf("%s.%x", node, now.UnixNano()), "namespace": namespace,
		},
		"eventTime":           now.UTC().Format(metav1.RFC3339Micro),
		"reportingController": "berth.dev/agent",
		"reportingInstance":   node,
		"action":              event.reason,
		"reason":              event.reason,
		"regarding":           regarding,
		"note":                event.note,
		"type":                event.kind,
	}}
}
