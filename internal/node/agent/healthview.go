package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

const (
	// conditionGPUs is the Node's condition: False while a GPU is not given out.
	conditionGPUs = "GPUsHealthy"
	// taintUnhealthy keeps pods away from a node with a bad GPU, where that is wanted.
	taintUnhealthy = "berth.dev/gpu-unhealthy"
	// healthFieldManager owns the condition, and wrote the taint.
	healthFieldManager = "berth-agent-health"
	// healthRetry is the pause after the API server has refused.
	healthRetry = 5 * time.Second
	// healthResync is the time between two looks at whether the Node still says so: somebody may have edited it by hand, or
	// deleted it and let it register again.
	healthResync = 30 * time.Second
)

// deviceVerdict is one device as it was last told of.
type deviceVerdict struct {
	name    string
	state   gpu.State
	because string
}

// tellHealth makes an event of each device whose verdict has changed, and keeps the Node's
// condition (and its taint, where that is wanted) equal to the verdicts, until ctx ends.
func (a *Agent) tellHealth(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.compared:
	}
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	told := map[gpu.UUID]deviceVerdict{}
	for {
		verdicts := verdictsOf(a.inventory.Current())
		a.tellChanges(told, verdicts)
		summary := a.healthSummary(verdicts)
		var again <-chan time.Time
		if a.api != nil {
			err := a.writeHealth(ctx, summary)
			a.problemList.SetError("node-health", "NODE_CONDITION", err)
			again = a.clock.After(healthResync)
			if err != nil {
				again = a.clock.After(healthRetry)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		case <-again:
		}
	}
}

// verdictsOf lists the devices of a node with their verdicts.
func verdictsOf(snapshot *gpu.Snapshot) map[gpu.UUID]deviceVerdict {
	verdicts := map[gpu.UUID]deviceVerdict{}
	note := func(id gpu.UUID, name string, health gpu.Health) {
		var causes []string
		for _, cause := range health.Causes {
			causes = append(causes, cause.Code+": "+cause.Message)
		}
		verdicts[id] = deviceVerdict{name: name, state: cmp.Or(health.State, gpu.Healthy), because: strings.Join(causes, "; ")}
	}
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		note(card.UUID, fmt.Sprintf("GPU %d (%s)", card.Index, card.UUID), card.Health)
		for j := range card.MIG.Devices {
			part := &card.MIG.Devices[j]
			note(part.UUID, fmt.Sprintf("MIG device %d:%d (%s, %s)", card.Index, part.Index, part.Profile, part.UUID), part.Health)
		}
	}
	return verdicts
}

// tellChanges makes events: each names the pods that hold the device.
func (a *Agent) tellChanges(told, verdicts map[gpu.UUID]deviceVerdict) {
	var changed []gpu.UUID
	for id, now := range verdicts {
		before, known := told[id]
		if known && before.state == now.state || !known && now.state == gpu.Healthy {
			continue
		}
		changed = append(changed, id)
	}
	slices.SortFunc(changed, func(x, y gpu.UUID) int { return strings.Compare(verdicts[x].name, verdicts[y].name) })
	holders := a.holdersOf()
	for _, id := range changed {
		now := verdicts[id]
		if now.state == gpu.Healthy {
			a.events.Publish(nodeapi.GPUHealthy(now.name))
			continue
		}
		var names []string
		if card, part := a.inventory.Current().Device(id); card != nil {
			key := gpu.DeviceKey{GPU: card.UUID}
			if part != nil {
				key.MIG = part.UUID
			}
			names = holders(key)
		}
		a.events.Publish(nodeapi.GPUNotHealthy(now.name, now.state, now.because, names))
	}
	clear(told)
	maps.Copy(told, verdicts)
}

// nodeHealth is what the Node says of its GPUs.
type nodeHealth struct {
	ok      bool
	taint   bool
	reason  string
	message string
}

// The reasons of the condition. Draining: what is not offered still serves the pods that have it, and nothing is worse.
const (
	reasonHealthy   = "Healthy"
	reasonDraining  = string(gpu.Draining)
	reasonUnhealthy = "Unhealthy"
)

// status is the condition's status.
func (h nodeHealth) status() string {
	if h.ok {
		return "True"
	}
	return "False"
}

func (a *Agent) healthSummary(verdicts map[gpu.UUID]deviceVerdict) nodeHealth {
	var bad []string
	out := nodeHealth{ok: true, reason: reasonHealthy}
	for _, v := range verdicts {
		if v.state == gpu.Healthy {
			continue
		}
		// A taint for a GPU that works on would keep pods from the node's other GPUs, for as long as a tenant's program
		// makes errors, or for as long as a pod that has a draining GPU runs.
		out.taint = out.taint || a.config.TaintUnhealthy && v.state.Worse(gpu.Draining)
		out.ok = out.ok && !v.state.Worse(gpu.Degraded)
		switch {
		case v.state.Worse(gpu.Draining):
			out.reason = reasonUnhealthy
		case v.state == gpu.Draining && out.reason == reasonHealthy:
			out.reason = reasonDraining
		}
		bad = append(bad, v.name+" is "+string(v.state))
	}
	slices.Sort(bad)
	out.message = "every GPU is well"
	if len(bad) > 0 {
		out.message = strings.Join(bad, "; ")
	}
	return out
}

// nodes are where the Node is.
func nodes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

// bareNode is a Node of which nothing but the status is applied.
func bareNode(name string, status map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}, "status": status,
	}}
}

// writeHealth brings the condition and the taint of the Node in line with what it is given. It writes nothing where the Node says so
// already.
func (a *Agent) writeHealth(ctx context.Context, h nodeHealth) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node, err := a.api.Resource(nodes()).Get(ctx, a.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the node, to write its condition %s: %w", conditionGPUs, err)
	}
	status, reason := h.status(), h.reason
	if conditionIs(node, status, reason, h.message) {
		return setTaint(ctx, a.api, a.config.NodeName, h.taint)
	}
	now := a.clock.Now().UTC().Format(time.RFC3339)
	if _, err := a.api.Resource(nodes()).Apply(ctx, a.config.NodeName, bareNode(a.config.NodeName, map[string]any{
		"conditions": []any{map[string]any{
			"type": conditionGPUs, "status": status, "reason": reason, "message": h.message,
			"lastHeartbeatTime": now, "lastTransitionTime": cmp.Or(conditionSince(node, status), now),
		}},
	}), metav1.ApplyOptions{FieldManager: healthFieldManager, Force: true}, "status"); err != nil {
		return fmt.Errorf("write condition %s of the node: %w", conditionGPUs, err)
	}
	return setTaint(ctx, a.api, a.config.NodeName, h.taint)
}

// conditionIs tells whether the Node has the condition with this content.
func conditionIs(node *unstructured.Unstructured, status, reason, message string) bool {
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(one any) bool {
		condition, ok := one.(map[string]any)
		return ok && condition["type"] == conditionGPUs && condition["status"] == status && condition["reason"] == reason && condition["message"] == message
	})
}

// conditionSince is since when the condition has the status; empty when it has another.
func conditionSince(node *unstructured.Unstructured, status string) string {
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	for _, one := range conditions {
		if condition, ok := one.(map[string]any); ok && condition["type"] == conditionGPUs && condition["status"] == status {
			since, _ := condition["lastTransitionTime"].(string)
			return since
		}
	}
	return ""
}

// setTaint gives the Node the taint or takes it away. The taints of a Node are one list to the API server,
// which nobody owns a part of: those of others are written back as they were read, and not at all if
// they have changed since.
func setTaint(ctx context.Context, api dynamic.Interface, name string, wanted bool) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := api.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		taints, _, _ := unstructured.NestedSlice(node.Object, "spec", "taints")
		others := slices.DeleteFunc(slices.Clone(taints), func(one any) bool {
			taint, ok := one.(map[string]any)
			return ok && taint["key"] == taintUnhealthy
		})
		if wanted == (len(others) < len(taints)) {
			return nil
		}
		if wanted {
			others = append(others, map[string]any{"key": taintUnhealthy, "value": "true", "effect": "NoSchedule"})
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": node.GetResourceVersion()}, "spec": map[string]any{"taints": others},
		})
		if err != nil {
			return err
		}
		_, err = api.Resource(nodes()).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: healthFieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("write taint %s of the node: %w", taintUnhealthy, err)
	}
	return nil
}

// removeHealth takes the condition and the taint away from the Node.
func removeHealth(ctx context.Context, api dynamic.Interface, name string) error {
	if api == nil {
		return nil
	}
	_, err := api.Resource(nodes()).Apply(ctx, name, bareNode(name, map[string]any{}), metav1.ApplyOptions{FieldManager: healthFieldManager, Force: true}, "status")
	if err == nil {
		err = setTaint(ctx, api, name, false)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
