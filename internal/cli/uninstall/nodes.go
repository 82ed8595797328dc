package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// agentManagers precedes the field managers of the agents: berth-agent-features, -mig, -health and -gate.
const agentManagers = "berth-agent-"

// patchAttempts is how often a list of a Node is read again and patched when another program changed it in between.
const patchAttempts = 5

// conditions are the types of a Node's conditions that only agents write.
var conditions = []string{"GPUsHealthy", v1alpha1.NodeConditionReady}

// cleanNodes removes what agents wrote in Nodes, and the ResourceSlices and NodeFeatures that they made.
func (r *remover) cleanNodes(ctx context.Context) error {
	found, err := r.list(ctx, nodes(), "", "")
	if err != nil {
		return err
	}
	for i := range found {
		changed, err := r.cleanNode(ctx, &found[i])
		if apierrors.IsNotFound(err) {
			continue // Deleted in between.
		}
		if err != nil {
			return fmt.Errorf("clean Node %s: %w", found[i].GetName(), err)
		}
		if changed {
			r.print("removed labels, conditions and taints of Node %s", found[i].GetName())
		}
	}
	if err := r.removeFeatures(ctx); err != nil {
		return err
	}
	return r.removeAll(ctx, resource("resource.k8s.io", "v1", "resourceslices"), "", "", func(o *unstructured.Unstructured) bool {
		driver, _, _ := unstructured.NestedString(o.Object, "spec", "driver")
		return driver == r.found.driver
	})
}

// cleanNode removes of a Node what the agents' field managers own, and their taints. Nothing is written to a Node that has nothing of
// them.
func (r *remover) cleanNode(ctx context.Context, node *unstructured.Unstructured) (changed bool, err error) {
	client := r.Client.Resource(nodes())
	for _, entry := range node.GetManagedFields() {
		if entry.Operation != metav1.ManagedFieldsOperationApply || !strings.HasPrefix(entry.Manager, agentManagers) {
			continue
		}
		// An applied object without the fields removes those that no other manager has. The UID keeps the API server from making a Node.
		bare := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node"}}
		bare.SetName(node.GetName())
		bare.SetUID(node.GetUID())
		var subresources []string
		if entry.Subresource != "" {
			bare.Object["status"] = map[string]any{}
			subresources = []string{entry.Subresource}
		}
		if _, err := client.Apply(ctx, node.GetName(), bare, metav1.ApplyOptions{FieldManager: entry.Manager, Force: true}, subresources...); err != nil {
			return changed, fmt.Errorf("remove the fields of %s: %w", entry.Manager, err)
		}
		changed = true
	}
	taint := func(one map[string]any) bool {
		// The gate's key can be configured, and have been another one before. An autoscaler may have made the Node with the default key
		// and another value; one of another key and value is an administrator's.
		return one["key"] == nodeapi.TaintUnhealthy || one["key"] == v1alpha1.TaintNotValidated || one["value"] == v1alpha1.TaintNotValidatedValue
	}
	condition := func(one map[string]any) bool {
		kind, _ := one["type"].(string)
		return slices.Contains(conditions, kind)
	}
	for _, list := range []struct {
		path        []string
		ours        func(map[string]any) bool
		subresource []string
	}{{[]string{"spec", "taints"}, taint, nil}, {[]string{"status", "conditions"}, condition, []string{"status"}}} {
		if all, after := without(node, list.path, list.ours); len(all) == len(after) {
			continue
		}
		did, err := r.removeElements(ctx, node.GetName(), list.path, list.ours, list.subresource...)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// without returns the elements of a list of a Node, and those of them that are not ours.
func without(node *unstructured.Unstructured, path []string, ours func(map[string]any) bool) (all, others []any) {
	all, _, _ = unstructured.NestedSlice(node.Object, path...)
	others = slices.DeleteFunc(slices.Clone(all), func(one any) bool {
		fields, ok := one.(map[string]any)
		return ok && ours(fields)
	})
	return all, others
}

// removeElements removes elements of a list of a Node. The list is replaced if it is still the one that was read.
func (r *remover) removeElements(ctx context.Context, node string, path []string, ours func(map[string]any) bool, subresources ...string) (bool, error) {
	client := r.Client.Resource(nodes())
	var refused error
	for range patchAttempts {
		object, err := client.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		before, after := without(object, path, ours)
		if len(after) == len(before) {
			return false, nil
		}
		at := "/" + strings.Join(path, "/")
		patch, err := json.Marshal([]map[string]any{{"op": "test", "path": at, "value": before}, {"op": "replace", "path": at, "value": after}})
		if err != nil {
			return false, err
		}
		_, refused = client.Patch(ctx, node, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
		if !apierrors.IsInvalid(refused) {
			break
		}
	}
	if refused != nil {
		return false, fmt.Errorf("change %s: %w", strings.Join(path, "."), refused)
	}
	return true, nil
}

// removeFeatures deletes the NodeFeatures of agents. A cluster without Node Feature Discovery has none.
func (r *remover) removeFeatures(ctx context.Context) error {
	found, err := r.list(ctx, resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures"), r.Namespace, "")
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	for i := range found {
		name := found[i].GetLabels()["nfd.node.kubernetes.io/node-name"]
		if name == "" {
			continue
		}
		writer, err := labels.NewWriter(labels.OutputNodeFeature, labels.Places{Client: r.Client, NodeName: name, Namespace: r.Namespace})
		if err != nil {
			return err
		}
		left, err := writer.Read(ctx) // Nothing of an object that another program made.
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if len(left) == 0 {
			continue
		}
		if err := writer.Remove(ctx); err != nil {
			return err
		}
		r.print("deleted %s", writer.Place())
	}
	return nil
}
