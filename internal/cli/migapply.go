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

// The labels of a Node by which a layout is asked for, and what became of it.
const (
	labelMIG      = "nvidia.com/mig.config"
	labelMIGState = "nvidia.com/mig.config.state"
	stateSuccess  = "success"
	stateFailed   = "failed"
)

const (
	conditionMIGApplied = "MIGApplied"
	// fieldManager owns what berth writes for a person.
	fieldManager = "berth"
	// pollInterval is the time between two looks at a node.
	pollInterval = time.Second
	// settleTime is how long the agent's word has to stand before it counts against the
	// picture: label, condition and picture of a GPUNode are not changed at one moment.
	settleTime = 3 * time.Second
)

func nodesResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

func podsResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// applier asks for a layout and waits until it is there.
type applier struct {
	client           dynamic.Interface
	clock            clock.Clock
	out              io.Writer
	node, layoutName string
	layout           mig.Layout
	force            bool
	wait             time.Duration

	said    string               // the last progress line
	evicted map[string]bool      // pods that are on their way out
	told    map[string]string    // what was said last of a pod
	since   map[string]time.Time // when a state of the node began
}

// say prints a line of progress, once as long as it stays the same.
func (a *applier) say(format string, args ...any) {
	if text := term.Clean(fmt.Sprintf(format, args...)); text != a.said {
		a.said = text
		fmt.Fprintln(a.out, text)
	}
}

// tell prints a line about a pod, once as long as it stays the same.
func (a *applier) tell(pod, format string, args ...any) {
	if text := term.Clean(fmt.Sprintf(format, args...)); a.told[pod] != text {
		a.told[pod] = text
		fmt.Fprintln(a.out, text)
	}
}

// rehearse says what apply would do.
func (a *applier) rehearse(node *v1alpha1.GPUNode) error {
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
	a.evicted, a.told, a.since = map[string]bool{}, map[string]string{}, map[string]time.Time{}
	labels, err := a.labels(ctx)
	if err != nil {
		return cannot(err)
	}
	if labels[labelMIG] == a.layoutName {
		if a.finished(node, labels) && !changes(a.plan(node)) {
			return nil
		}
		a.say("Node %s already has the label %s=%s", a.node, labelMIG, a.layoutName)
	} else if err := a.ask(ctx); err != nil {
		return cannot(err)
	} else {
		a.say("set the label %s=%s of Node %s", labelMIG, a.layoutName, a.node)
	}
	if a.wait <= 0 {
		return nil
	}
	return a.await(ctx, node)
}

// labels are those of the Node.
func (a *applier) labels(ctx context.Context) (map[string]string, error) {
	node, err := a.client.Resource(nodesResource()).Get(ctx, a.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", a.node, err)
	}
	return node.GetLabels(), nil
}

// ask sets the label. The label of the state is the agent's: it is not touched.
func (a *applier) ask(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{labelMIG: a.layoutName}}})
	if err != nil {
		return err
	}
	_, err = a.client.Resource(nodesResource()).Patch(ctx, a.node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsForbidden(err) {
		return &hintError{fmt.Errorf("set label %s of Node %s: %w", labelMIG, a.node, err), "fix: you need patch on nodes; or ask somebody for: kubectl label --overwrite node " + a.node + " " + labelMIG + "=" + a.layoutName}
	}
	if err != nil {
		return fmt.Errorf("set label %s of Node %s: %w", labelMIG, a.node, err)
	}
	return nil
}

// await looks at the node until the layout is applied, failed, or the time for it has passed.
// Answers that do not come are waited for too.
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
			return cannot(fmt.Errorf("wait for %s: %w; the label stays set", a.node, err))
		case err != nil && ctx.Err() == nil:
			a.say("no answer, asking again: %v", err)
		case err == nil:
			if done, err := a.look(ctx, node, labels); done || err != nil {
				return err
			}
		}
		if left := deadline.Sub(a.clock.Now()); left <= 0 {
			return a.tooLate(node)
		}
		select {
		case <-ctx.Done():
			return cannot(fmt.Errorf("wait for %s: %w; the label stays set, and the agent goes on", a.node, context.Cause(ctx)))
		case <-a.clock.After(pollInterval):
		}
	}
}

// look is one look at the node; done ends the waiting.
func (a *applier) look(ctx context.Context, node *v1alpha1.GPUNode, labels map[string]string) (done bool, err error) {
	if labels[labelMIG] != a.layoutName {
		return true, fmt.Errorf("wait for %s: somebody else set its label %s to %q meanwhile", a.node, labelMIG, labels[labelMIG])
	}
	if node.Status.Config.MIGLayout != a.layoutName {
		a.say("waiting for berth-agent on %s to take up the layout", a.node)
		return false, nil
	}
	plans := a.plan(node)
	condition := conditionOf(node, conditionMIGApplied)
	switch {
	case a.finished(node, labels) && !changes(plans):
		a.say("applied: the GPUs of %s are partitioned as %s wants", a.node, a.layoutName)
		return true, nil
	case a.finished(node, labels) && a.stands("finished"):
		a.say("applied, as the agent of %s says; it leaves alone: %s", a.node, strings.Join(changing(plans), ", "))
		return true, nil
	case labels[labelMIGState] == stateFailed && condition.Status == metav1.ConditionFalse && a.stands(stateFailed):
		return true, fmt.Errorf("apply %s to %s: it failed: %s", a.layoutName, a.node, orElse(term.Clean(condition.Message), "the agent's log says why"))
	}
	if text := condition.Message; condition.Status == metav1.ConditionFalse && text != "" {
		a.say("waiting: %s", text)
	} else {
		a.say("waiting for berth-agent on %s", a.node)
	}
	if a.force {
		return false, a.evictAll(ctx, blocking(node, plans))
	}
	return false, nil
}

// finished tells whether the agent says that it has applied the layout.
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

// stands tells whether a state has been there for a while.
func (a *applier) stands(state string) bool {
	if a.since[state].IsZero() {
		a.since[state] = a.clock.Now()
	}
	return a.clock.Since(a.since[state]) >= settleTime
}

func changes(plans []mig.GPUPlan) bool { return len(changing(plans)) > 0 }

// changing names the GPUs that are not as they are wanted.
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

// tooLate says for whom it was waited, and how to take the request back.
func (a *applier) tooLate(node *v1alpha1.GPUNode) error {
	reason := "berth-agent has not taken it up; does it run there?"
	if node.Status.Config.MIGLayout == a.layoutName {
		reason = orElse(conditionOf(node, conditionMIGApplied).Message, "berth-agent is at it")
	}
	return &hintError{
		fmt.Errorf("apply %s to %s: not there after %s: %s", a.layoutName, a.node, a.wait, term.Clean(reason)),
		fmt.Sprintf("it stays asked for, and is applied when nobody is in the way any more; to wait on, run the same again; to take it back: kubectl label node %s %s-", a.node, labelMIG),
	}
}

// evictAll evicts the pods in the way that are not on their way out yet. One that a
// PodDisruptionBudget keeps is asked for again at the next look.
func (a *applier) evictAll(ctx context.Context, holders []v1alpha1.Holder) error {
	for _, holder := range holders {
		name := holderText(holder)
		if holder.Pod == "" || gpu.HolderKind(holder.Kind) == gpu.HolderOrphan {
			a.tell(name, "%s cannot be evicted: it is no pod of the API", name)
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
			a.tell(name, "%s cannot be evicted: the kubelet runs it from a file of the node", name)
			return nil
		}
		if !slices.ContainsFunc(pod.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller }) {
			fate = "; it has no controller, so it is gone for good"
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
		a.tell(name, "evicted %s%s", name, fate)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it is gone, or another pod has its name
		a.evicted[holder.PodUID+name] = true
	case apierrors.IsTooManyRequests(err):
		a.tell(name, "%s is not evicted yet, its PodDisruptionBudget keeps it: %s", name, refusalOf(err))
	case apierrors.IsForbidden(err):
		return cannot(&hintError{fmt.Errorf("evict %s: %w", name, err), "fix: you need create on pods/eviction in namespace " + holder.Namespace + "; the label stays set, without --force the agent waits for the pod"})
	case ctx.Err() != nil:
	default:
		a.tell(name, "%s is not evicted yet: %v", name, err)
	}
	return nil
}

// refusalOf is the API's reason with its causes, which name the budget.
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
