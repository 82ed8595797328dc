package agent

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// migFieldManager owns the label nvidia.com/mig.config.state; the labels about the GPUs have another field manager.
const migFieldManager = "berth-agent-mig"

// migNode shows in the API how far the MIG layouts are; it implements migsync.Node.
type migNode struct{ agent *Agent }

// SetMIGState implements migsync.Node.
func (n migNode) SetMIGState(ctx context.Context, state string) error {
	if n.agent.api == nil {
		return nil // A standalone agent has no Node.
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return applyMIGState(ctx, n.agent.api, n.agent.config.NodeName, state)
}

// SetMIGCondition implements migsync.Node.
func (n migNode) SetMIGCondition(status metav1.ConditionStatus, reason, message string) {
	if status == "" {
		n.agent.conditions.Clear(nodeapi.ConditionMIG)
		return
	}
	n.agent.conditions.Set(nodeapi.ConditionMIG, status, reason, message)
}

// applyMIGState writes the label to the Node, or removes it when the state is empty.
func applyMIGState(ctx context.Context, api dynamic.Interface, name, state string) error {
	labels := map[string]any{}
	if state != "" {
		labels[configwatch.LabelMIGState] = state
	}
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "labels": labels},
	}}
	_, err := api.Resource(nodes()).Apply(ctx, name, node, metav1.ApplyOptions{FieldManager: migFieldManager, Force: true})
	return err
}
