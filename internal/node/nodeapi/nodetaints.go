package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// conflictAttempts is how often a patch is attempted before a conflict counts as a failure.
const conflictAttempts = 5

// gateFieldManager owns the condition GPUsReady, and writes the gate's taint.
const gateFieldManager = "berth-agent-gate"

// noSchedule is the effect of all taints of the agent.
const noSchedule = "NoSchedule"

// nodeTaint reads and writes one taint of the agent. Its value is the key of the wanted taint; empty for none.
type nodeTaint struct {
	api  dynamic.Interface
	name string
	// own reports whether a taint is the agent's.
	own func(taint map[string]any) bool
	// title is the key by which errors name it, value the value of the wanted taint.
	title   string
	value   string
	manager string
}

// NewNodeTaint returns the publisher of the Node's taint of unhealthy GPUs: true for a Node that has it.
func NewNodeTaint(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[bool] {
	taint := unhealthyTaint(api, retry.NodeName)
	keys := map[bool]string{true: TaintUnhealthy}
	return NewPublisher(PublisherDeps[bool]{
		Read: func(ctx context.Context) (bool, bool, error) {
			key, found, err := taint.read(ctx)
			return key != "", found, err
		},
		Write: func(ctx context.Context, wanted bool) error { return taint.write(ctx, keys[wanted]) },
		Equal: func(x, y bool) bool { return x == y }, Report: report, Retry: retry, Log: log, Resync: healthResync,
	})
}

func unhealthyTaint(api dynamic.Interface, node string) nodeTaint {
	own := func(taint map[string]any) bool { return taint["key"] == TaintUnhealthy }
	return nodeTaint{api, node, own, TaintUnhealthy, "true", healthFieldManager}
}

// GateTaint is the wanted taint of the gate.
type GateTaint struct {
	// Key is its key. A taint of that key is the gate's, whatever value it has: an autoscaler may have made the Node with it.
	Key string
	// Wanted is whether the Node has the taint.
	Wanted bool
}

// NewGateTaint returns the publisher of the gate's taint. A taint of the gate under a former key is removed.
func NewGateTaint(api dynamic.Interface, retry Retry, report func(error), log *slog.Logger) *Publisher[GateTaint] {
	return NewPublisher(PublisherDeps[GateTaint]{
		// What is there depends on the key that is wanted, so write compares.
		Read: func(context.Context) (GateTaint, bool, error) { return GateTaint{}, false, nil },
		Write: func(ctx context.Context, wanted GateTaint) error {
			return gateTaint(api, retry.NodeName, wanted.Key).write(ctx, wanted.key())
		},
		Equal: func(x, y GateTaint) bool { return x == y }, Report: report, Retry: retry, Log: log, Resync: healthResync,
	})
}

func (t GateTaint) key() string {
	if t.Wanted {
		return t.Key
	}
	return ""
}

func gateTaint(api dynamic.Interface, node, key string) nodeTaint {
	own := func(taint map[string]any) bool {
		return taint["effect"] == noSchedule && (taint["key"] == key || taint["value"] == v1alpha1.TaintNotValidatedValue)
	}
	return nodeTaint{api, node, own, key, v1alpha1.TaintNotValidatedValue, gateFieldManager}
}

func (t nodeTaint) read(ctx context.Context) (key string, found bool, err error) {
	node, err := Nodes(t.api).Get(ctx, t.name, metav1.GetOptions{})
	if err != nil {
		return "", false, err
	}
	_, _, own := t.split(node)
	if len(own) > 0 {
		key, _ = own[0]["key"].(string)
	}
	return key, true, nil
}

// split returns the taints of a Node, those of them that are not the agent's, and those that are.
func (t nodeTaint) split(node *unstructured.Unstructured) (all, others []any, own []map[string]any) {
	all, _, _ = unstructured.NestedSlice(node.Object, "spec", "taints")
	others = []any{}
	for _, one := range all {
		if taint, ok := one.(map[string]any); ok && t.own(taint) {
			own = append(own, taint)
			continue
		}
		others = append(others, one)
	}
	return all, others, own
}

// there reports whether the Node has the taint of the wanted key and none other of the agent.
func (t nodeTaint) there(own []map[string]any, wanted string) bool {
	if wanted == "" {
		return len(own) == 0
	}
	return len(own) == 1 && own[0]["key"] == wanted && own[0]["effect"] == noSchedule
}

// write brings the taint in line. When the taints have changed since they were read, they are read again and patched
// at once, a few times; a further failure is retried like others.
func (t nodeTaint) write(ctx context.Context, wanted string) error {
	if err := t.change(ctx, wanted); err != nil {
		return fmt.Errorf("write taint %s of Node %s: %w", t.title, t.name, err)
	}
	return nil
}

func (t nodeTaint) change(ctx context.Context, wanted string) error {
	var refused error
	var before []any
	for range conflictAttempts {
		node, err := Nodes(t.api).Get(ctx, t.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, others, own := t.split(node)
		if t.there(own, wanted) {
			return nil
		}
		if refused != nil && reflect.DeepEqual(all, before) {
			return refused // For another reason than a conflict.
		}
		if wanted != "" {
			others = append(others, map[string]any{"key": wanted, "value": t.value, "effect": noSchedule})
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
	_, err = Nodes(t.api).Patch(ctx, t.name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: t.manager})
	return err
}

// RemoveHealth removes the condition GPUsHealthy and the taint of unhealthy GPUs from the Node. Without a Node, or without an API server
// (api is nil), there is nothing to remove.
func RemoveHealth(ctx context.Context, api dynamic.Interface, node string) error {
	return removeFrom(ctx, api, nodeCondition{api: api, name: node, kind: conditionGPUs, manager: healthFieldManager}, unhealthyTaint(api, node))
}

// RemoveGate removes the condition GPUsReady, and the taint of the gate under the key and under each former one, from the Node, as
// RemoveHealth does.
func RemoveGate(ctx context.Context, api dynamic.Interface, node, key string) error {
	return removeFrom(ctx, api, nodeCondition{api: api, name: node, kind: v1alpha1.NodeConditionReady, manager: gateFieldManager}, gateTaint(api, node, key))
}

func removeFrom(ctx context.Context, api dynamic.Interface, condition nodeCondition, taint nodeTaint) error {
	if api == nil {
		return nil
	}
	err := condition.remove(ctx)
	if err == nil {
		err = taint.write(ctx, "")
	}
	if cause := errors.Unwrap(err); apierrors.IsNotFound(cause) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
