package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
)

// The labels of a Node with the requested layout and with its state.
const (
	labelMIG      = "nvidia.com/mig.config"
	labelMIGState = "nvidia.com/mig.config.state"
	stateSuccess  = "success"
	stateFailed   = "failed"
)

const (
	conditionMIGApplied = "MIGApplied"
	// fieldManager is the field manager of what berth writes.
	fieldManager = "berth"
	// pollInterval is the time between two reads of a node's state.
	pollInterval = time.Second
	// settleTime is how long the agent must report a state before berth acts on it: the label, the condition and the
	// devices of a GPUNode do not change at the same moment.
	settleTime = 3 * time.Second
)

func nodesResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

func podsResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// applier requests a layout and waits until it is applied.
type applier struct {
	client     dynamic.Interface
	clock      clock.Clock
	out        io.Writer
	node       string
	layoutName string
	layout     mig.Layout
	force      bool
	wait       time.Duration

	lastLine string               // the last progress line
	evicted  map[string]bool      // pods that are being terminated
	podLines map[string]string    // the last line about each pod
	since    map[string]time.Time // when a state of the node was first seen
}

// progress prints a line of progress, unless it repeats the previous one.
func (a *applier) progress(format string, args ...any) {
	if text := term.Clean(fmt.Sprintf(format, args...)); text != a.lastLine {
		a.lastLine = text
		fmt.Fprintln(a.out, text)
	}
}

// podProgress prints a line about a pod, unless it repeats the previous one about that pod.
func (a *applier) podProgress(pod, format string, args ...any) {
	if text := term.Clean(fmt.Sprintf(format, args...)); a.podLines[pod] != text {
		a.podLines[pod] = text
		fmt.Fprintln(a.out, text)
	}
}

// printDryRun prints what apply would do.
func (a *applier) printDryRun(node *v1alpha1.GPUNode) error {
	fmt.Fprintf(a.out, "dry run: the label %s=%s of Node %s would be set", labelMIG, a.layoutName, a.node)
	var pods []string
	for _, holder := range blocking(node, a.plan(node)) {
		pods = append(pods, holderText(holder))
	}
	if a.force && len(pods) > 0 {
		fmt.Fprintf(a.out, ", and these evicted: %s", term.Clean(strings.Join(pods, ", ")))
	}
	fmt.Fprintln(a.out)
	return nil
}

func (a *applier) plan(node *v1alpha1.GPUNode) []mig.GPUPlan {
	return planNode(gpusOf(node), a.layout, node)
}

// apply sets the label and waits.
func (a *applier) apply(ctx context.Context, node *v1alpha1.GPUNode) error {
	a.evicted, a.podLines, a.since = map[string]bool{}, map[string]string{}, map[string]time.Time{}
	labels, err := a.labels(ctx)
	if err != nil {
		return err
	}
	if labels[labelMIG] == a.layoutName {
		if a.finished(node, labels) && !changes(a.plan(node)) {
			return nil
		}
		a.progress("Node %s already has the label %s=%s", a.node, labelMIG, a.layoutName)
	} else if err := a.setLabel(ctx); err != nil {
		return err
	} else {
		a.progress("set the label %s=%s of Node %s", labelMIG, a.layoutName, a.node)
	}
	if a.wait <= 0 {
		return nil
	}
	return a.await(ctx, node)
}

// labels returns the labels of the Node.
func (a *applier) labels(ctx context.Context) (map[string]string, error) {
	node, err := a.client.Resource(nodesResource()).Get(ctx, a.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", a.node, err)
	}
	return node.GetLabels(), nil
}

// setLabel sets the label of the wanted layout. The label of the state belongs to the agent and is not changed.
func (a *applier) setLabel(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{labelMIG: a.layoutName}}})
	if err != nil {
		return err
	}
	_, err = a.client.Resource(nodesResource()).Patch(ctx, a.node, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsForbidden(err) {
		return &hintError{fmt.Errorf("set label %s of Node %s: %w", labelMIG, a.node, err),
			"fix: get the permission to patch nodes, or have an administrator run: kubectl label --overwrite node " +
				a.node + " " + labelMIG + "=" + a.layoutName}
	}
	if err != nil {
		return fmt.Errorf("set label %s of Node %s: %w", labelMIG, a.node, err)
	}
	return nil
}

// await polls the node until the layout is applied, has failed, or the time has passed. It retries reads that fail.
func (a *applier) await(ctx context.Context, node *v1alpha1.GPUNode) error {
	deadline := a.clock.Now().Add(a.wait)
	for {
		labels, err := a.labels(ctx)
		if err == nil {
			var object *unstructured.Unstructured
			if object, err = a.client.Resource(v1alpha1.GPUNodes()).Get(ctx, a.node, metav1.GetOptions{}); err == nil {
				node, err = gpunode.Decode(object)
			}
		}
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			return fmt.Errorf("wait for %s: %w; the label stays set", a.node, err)
		case err != nil && ctx.Err() == nil:
			a.progress("the API server did not answer, retrying: %v", err)
		case err == nil:
			if done, err := a.evaluate(ctx, node, labels); done || err != nil {
				return err
			}
		}
		if left := deadline.Sub(a.clock.Now()); left <= 0 {
			return a.timeoutError(node)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; the label stays set, and the agent continues", a.node, context.Cause(ctx))
		case <-a.clock.After(pollInterval):
		}
	}
}

// evaluate checks the state of the node once; done ends the waiting.
func (a *applier) evaluate(ctx context.Context, node *v1alpha1.GPUNode, labels map[string]string) (done bool, err error) {
	if labels[labelMIG] != a.layoutName {
		return true, finding(fmt.Errorf("wait for %s: its label %s was changed to %q", a.node, labelMIG, labels[labelMIG]))
	}
	if node.Status.Config.MIGLayout != a.layoutName {
		a.progress("waiting for berth-agent on %s to accept the layout", a.node)
		return false, nil
	}
	plans := a.plan(node)
	condition := conditionOf(node, conditionMIGApplied)
	switch {
	case a.finished(node, labels) && !changes(plans):
		a.progress("applied: the GPUs of %s have the layout %s", a.node, a.layoutName)
		return true, nil
	case a.finished(node, labels) && a.lasted("finished"):
		a.progress("applied, as the agent of %s reports; it does not change: %s", a.node, strings.Join(changing(plans), ", "))
		return true, nil
	case labels[labelMIGState] == stateFailed && condition.Status == metav1.ConditionFalse && a.lasted(stateFailed):
		return true, finding(fmt.Errorf("apply %s to %s: failed: %s", a.layoutName, a.node,
			orElse(term.Clean(condition.Message), "the agent's log says why")))
	}
	if text := condition.Message; condition.Status == metav1.ConditionFalse && text != "" {
		a.progress("waiting: %s", text)
	} else {
		a.progress("waiting for berth-agent on %s", a.node)
	}
	if a.force {
		return false, a.evictAll(ctx, blocking(node, plans))
	}
	return false, nil
}

// finished reports whether the agent says that it has applied the layout.
func (a *applier) finished(node *v1alpha1.GPUNode, labels map[string]string) bool {
	done := labels[labelMIGState] == stateSuccess && node.Status.Config.MIGLayout == a.layoutName &&
		conditionOf(node, conditionMIGApplied).Status != metav1.ConditionFalse
	if !done {
		delete(a.since, "finished")
	}
	if labels[labelMIGState] != stateFailed {
		delete(a.since, stateFailed)
	}
	return done
}

// lasted reports whether a state has lasted for settleTime.
func (a *applier) lasted(state string) bool {
	if a.since[state].IsZero() {
		a.since[state] = a.clock.Now()
	}
	return a.clock.Since(a.since[state]) >= settleTime
}

func changes(plans []mig.GPUPlan) bool { return len(changing(plans)) > 0 }

// changing names the GPUs that do not have the wanted layout.
func changing(plans []mig.GPUPlan) []string {
	var names []string
	for i := range plans {
		if plans[i].Changes() || plans[i].Refused != "" {
			names = append(names, fmt.Sprintf("GPU %d", plans[i].Index))
		}
	}
	return names
}

func conditionOf(node *v1alpha1.GPUNode, name string) metav1.Condition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == name {
			return condition
		}
	}
	return metav1.Condition{}
}

// timeoutError returns the error of a timeout: what the change waits for, and how to withdraw the request.
func (a *applier) timeoutError(node *v1alpha1.GPUNode) error {
	reason := "berth-agent has not accepted the layout; check that it runs on the node"
	if node.Status.Config.MIGLayout == a.layoutName {
		reason = orElse(conditionOf(node, conditionMIGApplied).Message, "berth-agent is applying it")
	}
	return finding(&hintError{
		fmt.Errorf("apply %s to %s: not applied after %s: %s", a.layoutName, a.node, a.wait, term.Clean(reason)),
		fmt.Sprintf("the request stays, and is carried out when no pod blocks it; to keep waiting, run the command "+
			"again; to withdraw it: kubectl label node %s %s-", a.node, labelMIG),
	})
}

// evictAll evicts the blocking pods that are not being terminated yet. If a PodDisruptionBudget prevents an eviction,
// the next round tries again.
func (a *applier) evictAll(ctx context.Context, holders []v1alpha1.Holder) error {
	for _, holder := range holders {
		name := holderText(holder)
		if holder.Pod == "" || gpu.HolderKind(holder.Kind) == gpu.HolderOrphan {
			a.podProgress(name, "%s cannot be evicted: the API server has no such pod", name)
			continue
		}
		if a.evicted[holder.PodUID+name] {
			continue
		}
		if err := a.evict(ctx, holder, name); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) evict(ctx context.Context, holder v1alpha1.Holder, name string) error {
	pods := a.client.Resource(podsResource()).Namespace(holder.Namespace)
	fate := ""
	if pod, err := pods.Get(ctx, holder.Pod, metav1.GetOptions{}); err == nil {
		if pod.GetAnnotations()["kubernetes.io/config.mirror"] != "" {
			a.podProgress(name, "%s cannot be evicted: it is a static pod of the node", name)
			return nil
		}
		if !slices.ContainsFunc(pod.GetOwnerReferences(),
			func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller }) {
			fate = "; it has no controller, so it is not created again"
		}
	}
	eviction := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata":      map[string]any{"namespace": holder.Namespace, "name": holder.Pod},
		"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": holder.PodUID}},
	}}
	_, err := pods.Create(ctx, eviction, metav1.CreateOptions{FieldManager: fieldManager}, "eviction")
	switch {
	case err == nil:
		a.evicted[holder.PodUID+name] = true
		a.podProgress(name, "evicted %s%s", name, fate)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // deleted, or replaced by another pod of that name
		a.evicted[holder.PodUID+name] = true
	case apierrors.IsTooManyRequests(err):
		a.podProgress(name, "%s is not evicted yet, its PodDisruptionBudget prevents it: %s", name, refusalOf(err))
	case apierrors.IsForbidden(err):
		return &hintError{fmt.Errorf("evict %s: %w", name, err),
			"fix: get the permission to create pods/eviction in namespace " + holder.Namespace +
				"; the label stays set, without --force the agent waits for the pod"}
	case ctx.Err() != nil:
	default:
		a.podProgress(name, "%s is not evicted yet: %v", name, err)
	}
	return nil
}

// refusalOf returns the API's reason with its causes, which name the budget.
func refusalOf(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			text += " (" + cause.Message + ")"
		}
	}
	return text
}
