package agents

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tooManyPods and insufficient are what kube-scheduler says of a node whose number of pods is full, and of one that lacks a resource
// (pkg/scheduler/framework/plugins/noderesources). A pod of a DaemonSet names its node, so what it says is about that one.
const (
	tooManyPods  = "Too many pods"
	insufficient = "Insufficient "
)

// replacement is an old agent in whose place a new one waits.
type replacement struct {
	old *corev1.Pod
	new *corev1.Pod
}

// waits reports whether an agent waits for a place among the pods of its node.
func waits(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
			strings.Contains(c.Message, tooManyPods) && !strings.Contains(c.Message, insufficient)
	})
}

// nodeOf returns the node that an agent runs on or, before it is bound, the one that the DaemonSet made it for.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil ||
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return pod.Spec.NodeName
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// replaces reports whether a new agent is what the DaemonSet wants in the place of an old one.
func replaces(now, old *corev1.Pod) bool {
	a, b := metav1.GetControllerOf(now), metav1.GetControllerOf(old)
	return a != nil && b != nil && a.Kind == "DaemonSet" && a.UID == b.UID && old.DeletionTimestamp == nil &&
		now.Labels[appsv1.ControllerRevisionHashLabelKey] != old.Labels[appsv1.ControllerRevisionHashLabelKey] &&
		old.CreationTimestamp.Before(&now.CreationTimestamp)
}

// most is how many of so many nodes may be without a ready agent: a tenth, and at least 10.
func most(nodes int) int { return max(10, nodes/10) }

// plan returns the old agents that have to end so that the new ones get their places, in the order of the nodes' names, how many nodes are
// without a ready agent and may be, and whether others wait for the next time.
func plan(pods []*corev1.Pod) (end []replacement, without, limit int, more bool) {
	byNode := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		if node := nodeOf(pod); node != "" {
			byNode[node] = append(byNode[node], pod)
		}
	}
	for node, here := range byNode {
		if !slices.ContainsFunc(here, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && ready(p) }) {
			without++
		}
		for _, now := range here {
			if !waits(now) {
				continue
			}
			if at := slices.IndexFunc(here, func(old *corev1.Pod) bool { return old.Spec.NodeName == node && replaces(now, old) }); at >= 0 {
				end = append(end, replacement{here[at], now})
			}
		}
	}
	slices.SortFunc(end, func(a, b replacement) int { return cmp.Compare(a.old.Spec.NodeName, b.old.Spec.NodeName) })
	limit = most(len(byNode))
	free := max(0, limit-without)
	return end[:min(free, len(end))], without, limit, len(end) > free
}
