package nodeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
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
	// conflictAttempts is how often a patch is attempted before a conflict counts as a failure.
	conflictAttempts = 5
)

// NodeCondition is the content of the condition GPUsHealthy of the Node.
type NodeCondition struct {
	OK              bool
	Reason, Message string
}

func (c NodeCondition) status() string {
	if c.OK {
		return string(metav1.ConditionTrue)
	}
	return string(metav1.ConditionFalse)
}

// nodeCondition reads and writes the condition.
type nodeCondition struct {
	api   dynamic.Interface
	name  string
	clock clock.PassiveClock
}

// NewNodeCondition returns the publisher of the Node's condition.
func NewNodeCondition(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[NodeCondition] {
	condition := nodeCondition{api, retry.NodeName, retry.Clock}
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
	for _, fields := range conditionsOf(node) {
		reason, _ := fields["reason"].(string)
		message, _ := fields["message"].(string)
		found := NodeCondition{OK: fields["status"] == string(metav1.ConditionTrue), Reason: reason, Message: message}
		return found, fields["status"] == found.status(), nil
	}
	return NodeCondition{}, false, nil
}

// write applies the condition. The time of the last transition is kept while the status does not change.
func (c nodeCondition) write(ctx context.Context, wanted NodeCondition) error {
	node, err := Nodes(c.api).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Node %s, to write its condition %s: %w", c.name, conditionGPUs, err)
	}
	now, since := c.clock.Now().UTC().Format(time.RFC3339), ""
	for _, fields := range conditionsOf(node) {
		if fields["status"] == wanted.status() {
			since, _ = fields["lastTransitionTime"].(string)
		}
	}
	applied := bareNode(c.name)
	applied.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": conditionGPUs, "status": wanted.status(), "reason": wanted.Reason, "message": wanted.Message,
		"lastHeartbeatTime": now, "lastTransitionTime": cmp.Or(since, now),
	}}}
	if err := applyStatus(ctx, c.api, applied); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", conditionGPUs, c.name, err)
	}
	return nil
}

func applyStatus(ctx context.Context, api dynamic.Interface, node *unstructured.Unstructured) error {
	_, err := Nodes(api).Apply(ctx, node.GetName(), node, metav1.ApplyOptions{FieldManager: healthFieldManager, Force: true}, "status")
	return err
}

// conditionsOf returns the conditions of the type GPUsHealthy, of which a Node has at most one.
func conditionsOf(node *unstructured.Unstructured) []map[string]any {
	var out []map[string]any
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	for _, one := range conditions {
		if fields, ok := one.(map[string]any); ok && fields["type"] == conditionGPUs {
			out = append(out, fields)
		}
	}
	return out
}

// nodeTaint reads and writes the taint.
type nodeTaint struct {
	api  dynamic.Interface
	name string
}

// NewNodeTaint returns the publisher of the Node's taint: true for a Node that has it.
func NewNodeTaint(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[bool] {
	taint := nodeTaint{api, retry.NodeName}
	return NewPublisher(PublisherDeps[bool]{
		Read: taint.read, Write: taint.write, Equal: func(x, y bool) bool { return x == y },
		Report: report, Retry: retry, Log: log, Resync: healthResync,
	})
}

func (t nodeTaint) read(ctx context.Context) (has, found bool, err error) {
	node, err := Nodes(t.api).Get(ctx, t.name, metav1.GetOptions{})
	if err != nil {
		return false, false, err
	}
	all, others := taintsOf(node)
	return len(others) < len(all), true, nil
}

// taintsOf returns the taints of a Node, and those of them that are not the agent's.
func taintsOf(node *unstructured.Unstructured) (all, others []any) {
	all, _, _ = unstructured.NestedSlice(node.Object, "spec", "taints")
	others = slices.DeleteFunc(slices.Clone(all), func(one any) bool {
		taint, ok := one.(map[string]any)
		return ok && taint["key"] == TaintUnhealthy
	})
	return all, others
}

// write adds or removes the taint. When the taints have changed since they were read, they are read again and patched
// at once, a few times; a further failure is retried like others.
func (t nodeTaint) write(ctx context.Context, wanted bool) error {
	if err := t.change(ctx, wanted); err != nil {
		return fmt.Errorf("write taint %s of Node %s: %w", TaintUnhealthy, t.name, err)
	}
	return nil
}

func (t nodeTaint) change(ctx context.Context, wanted bool) error {
	var refused error
	var before []any
	for range conflictAttempts {
		node, err := Nodes(t.api).Get(ctx, t.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, others := taintsOf(node)
		if wanted == (len(others) < len(all)) {
			return nil
		}
		if refused != nil && reflect.DeepEqual(all, before) {
			return refused // For another reason than a conflict.
		}
		if wanted {
			others = append(others, map[string]any{"key": TaintUnhealthy, "value": "true", "effect": "NoSchedule"})
		}
		if refused = t.replace(ctx, all, others); !apierrors.IsInvalid(refused) {
			return refused
		}
		before = all
	}
	return refused
}

// replace replaces the taints if they are still those of before; otherwise the API server responds that the patch is
// invalid. The taints are one list without owners of its parts, so those of other programs are written back as they were
// read. A condition on the resourceVersion would also fail after a change of anything else: of the condition and the
// labels, which the agent writes at the same time, and of the status that the kubelet writes.
func (t nodeTaint) replace(ctx context.Context, before, after []any) error {
	const path = "/spec/taints"
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": path, "value": before}, // A list without elements is null here, and absent on the Node.
		{"op": "add", "path": path, "value": after},
	})
	if err != nil {
		return err
	}
	_, err = Nodes(t.api).Patch(ctx, t.name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: healthFieldManager})
	return err
}

// RemoveHealth removes the condition and the taint from the Node. Without a Node, or without an API server (api is
// nil), there is nothing to remove.
func RemoveHealth(ctx context.Context, api dynamic.Interface, node string) error {
	if api == nil {
		return nil
	}
	bare := bareNode(node)
	bare.Object["status"] = map[string]any{}
	err := applyStatus(ctx, api, bare)
	if err == nil {
		err = nodeTaint{api, node}.write(ctx, false)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
