package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
)

const (
	// eventQueue is how many events wait for the API server; further ones are dropped,
	// since the condition and the log say the same.
	eventQueue = 64
	// eventRepeat is how long the same event is not written again.
	eventRepeat = 10 * time.Minute
	// eventStateLost is the reason of the event for a state file that could not be used.
	eventStateLost = "StateLost"
	// maxEventNote is the API's limit of a note, in bytes.
	maxEventNote = 1024
)

// nodeEvents writes Kubernetes events about the node, each once. Without an API
// server they go nowhere.
type nodeEvents struct {
	api   dynamic.Interface
	node  string
	clock clock.PassiveClock
	log   *slog.Logger
	queue chan nodeEvent
}

type nodeEvent struct{ kind, reason, note string }

func newNodeEvents(api dynamic.Interface, node string, clock clock.PassiveClock, log *slog.Logger) *nodeEvents {
	return &nodeEvents{api: api, node: node, clock: clock, log: log, queue: make(chan nodeEvent, eventQueue)}
}

// normal and warning tell the API's readers what happened; they never wait.
func (e *nodeEvents) normal(reason, note string)  { e.add(nodeEvent{"Normal", reason, note}) }
func (e *nodeEvents) warning(reason, note string) { e.add(nodeEvent{"Warning", reason, note}) }

func (e *nodeEvents) add(event nodeEvent) {
	if len(event.note) > maxEventNote {
		event.note = event.note[:maxEventNote-3] + "..."
	}
	select {
	case e.queue <- event:
	default:
	}
}

// run writes the events until ctx ends.
func (e *nodeEvents) run(ctx context.Context) error {
	written := map[nodeEvent]time.Time{}
	for {
		var event nodeEvent
		select {
		case <-ctx.Done():
			return nil
		case event = <-e.queue:
		}
		now := e.clock.Now()
		for old, at := range written {
			if now.Sub(at) >= eventRepeat {
				delete(written, old)
			}
		}
		if _, again := written[event]; again || e.api == nil {
			continue
		}
		if err := e.write(ctx, event, now); err != nil {
			if ctx.Err() == nil {
				e.log.Warn("an event could not be written", "reason", event.reason, "error", err)
			}
			continue
		}
		written[event] = now
	}
}

func (e *nodeEvents) write(ctx context.Context, event nodeEvent, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event",
		"metadata": map[string]any{
			"name": fmt.Sprintf("%s.%x", e.node, now.UnixNano()), "namespace": metav1.NamespaceDefault,
		},
		"eventTime":           now.UTC().Format(metav1.RFC3339Micro),
		"reportingController": "berth.dev/agent",
		"reportingInstance":   e.node,
		"action":              event.reason,
		"reason":              event.reason,
		// The kubelet names a Node by its name where a UID belongs, and tools look for that.
		"regarding": map[string]any{"apiVersion": "v1", "kind": "Node", "name": e.node, "uid": e.node},
		"note":      event.note,
		"type":      event.kind,
	}}
	events := schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	_, err := e.api.Resource(events).Namespace(metav1.NamespaceDefault).Create(ctx, object, metav1.CreateOptions{})
	return err
}
