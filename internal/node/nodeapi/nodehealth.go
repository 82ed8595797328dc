package nodeapi

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	// conditionGPUs is the condition of the Node: False while a GPU is not allocated to new pods.
	conditionGPUs = "GPUsHealthy"
	// TaintUnhealthy is the key of the taint that keeps pods away from a Node with an unhealthy GPU, where that is
	// configured.
	TaintUnhealthy = "berth.dev/gpu-unhealthy"
	// healthFieldManager owns the condition, and writes the taint.
	healthFieldManager = "berth-agent-health"
	// healthResync is the time between two comparisons of the condition and the taint with the Node, which may have
	// been edited by hand, or deleted and registered again.
	healthResync = 30 * time.Second
)

// NodeCondition is the content of a condition of the Node. Without a reason there is to be none.
type NodeCondition struct {
	OK      bool
	Reason  string
	Message string
}

func (c NodeCondition) status() string {
	if c.OK {
		return string(metav1.ConditionTrue)
	}
	return string(metav1.ConditionFalse)
}

// nodeCondition reads and writes a condition, which a field manager owns.
type nodeCondition struct {
	api     dynamic.Interface
	name    string
	clock   clock.PassiveClock
	kind    string
	manager string
}

// NewNodeCondition returns the publisher of the Node's condition GPUsHealthy.
func NewNodeCondition(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[NodeCondition] {
	return newNodeCondition(nodeCondition{api, retry.NodeName, retry.Clock, conditionGPUs, healthFieldManager}, retry, report, log)
}

// NewNodeReady returns the publisher of the Node's condition GPUsReady.
func NewNodeReady(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[NodeCondition] {
	return newNodeCondition(nodeCondition{api, retry.NodeName, retry.Clock, v1alpha1.NodeConditionReady, gateFieldManager}, retry, report, log)
}

func newNodeCondition(condition nodeCondition, retry Retry, report func(error), log *slog.Logger) *Publisher[NodeCondition] {
	return NewPublisher(PublisherDeps[NodeCondition]{
		Read: condition.read, Write: condition.write, Equal: func(x, y NodeCondition) bool { return x == y },
		Report: report, Retry: retry, Log: log, Resync: healthResync,
	})
}

func (c nodeCondition) read(ctx context.Context) (NodeCondition, bool, error) {
	node, err := Nodes(c.api).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return NodeCondition{}, false, err
	}
	for _, fields := range conditionsOf(node, c.kind) {
		reason, _ := fields["reason"].(string)
		message, _ := fields["message"].(string)
		found := NodeCondition{OK: fields["status"] == string(metav1.ConditionTrue), Reason: reason, Message: message}
		return found, fields["status"] == found.status(), nil
	}
	return NodeCondition{}, true, nil
}

// write applies the condition. The time of the last transition is kept while the status does not change.
func (c nodeCondition) write(ctx context.Context, wanted NodeCondition) error {
	if wanted.Reason == "" {
		return c.remove(ctx)
	}
	node, err := Nodes(c.api).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Node %s, to write its condition %s: %w", c.name, c.kind, err)
	}
	now, since := c.clock.Now().UTC().Format(time.RFC3339), ""
	for _, fields := range conditionsOf(node, c.kind) {
		if fields["status"] == wanted.status() {
			since, _ = fields["lastTransitionTime"].(string)
		}
	}
	applied := bareNode(c.name)
	applied.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": c.kind, "status": wanted.status(), "reason": wanted.Reason, "message": wanted.Message,
		"lastHeartbeatTime": now, "lastTransitionTime": cmp.Or(since, now),
	}}}
	if err := applyStatus(ctx, c.api, applied, c.manager); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", c.kind, c.name, err)
	}
	return nil
}

// remove removes the condition.
func (c nodeCondition) remove(ctx context.Context) error {
	bare := bareNode(c.name)
	bare.Object["status"] = map[string]any{}
	if err := applyStatus(ctx, c.api, bare, c.manager); err != nil {
		return fmt.Errorf("remove condition %s of Node %s: %w", c.kind, c.name, err)
	}
	return nil
}

func applyStatus(ctx context.Context, api dynamic.Interface, node *unstructured.Unstructured, manager string) error {
	_, err := Nodes(api).Apply(ctx, node.GetName(), node, metav1.ApplyOptions{FieldManager: manager, Force: true}, "status")
	return err
}

// conditionsOf returns the conditions of a type, of which a Node has at most one.
func conditionsOf(node *unstructured.Unstructured, kind string) []map[string]any {
	var out []map[string]any
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	for _, one := range conditions {
		if fields, ok := one.(map[string]any); ok && fields["type"] == kind {
			out = append(out, fields)
		}
	}
	return out
}
