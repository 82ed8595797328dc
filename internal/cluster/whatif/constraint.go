package whatif

import (
	"encoding/json"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// constraint is what decides, besides resources, on which nodes a pod may run. Pods of one constraint share its answers.
type constraint struct {
	pod *corev1.Pod // one of the pods that have it
	// nodes says for each node whether the pods may run there.
	nodes []bool
}

// constraintKey is equal for pods with equal constraints.
func constraintKey(pod *corev1.Pod) string {
	key := struct {
		Selector    map[string]string
		Required    *corev1.NodeSelector
		Tolerations []corev1.Toleration
	}{pod.Spec.NodeSelector, nil, pod.Spec.Tolerations}
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		key.Required = affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	text, err := json.Marshal(key)
	if err != nil {
		return string(pod.UID) // cannot happen with decoded objects; then the pod is alone
	}
	return string(text)
}

// allows tells whether pods with the constraint may run on a node. Terms that cannot be parsed match no node, as for the scheduler.
func (c *constraint) allows(node *corev1.Node) bool {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(c.pod).Match(node)
	if err != nil || !ok {
		return false
	}
	_, found := helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints(node), c.pod.Spec.Tolerations, schedules, false)
	return !found
}

// schedules tells whether a taint keeps pods away.
func schedules(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

// taints returns those of a node; one that is cordoned has the taint that says so.
func taints(node *corev1.Node) []corev1.Taint {
	if !node.Spec.Unschedulable {
		return node.Spec.Taints
	}
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	list := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == cordon.Key })
	return append(list, cordon)
}

// ignored tells whether a pod has requirements that are not considered here.
func ignored(pod *corev1.Pod) bool {
	spec := &pod.Spec
	if a := spec.Affinity; a != nil && (a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0) {
		return true
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			return true
		}
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	for i := range spec.Containers {
		if slices.ContainsFunc(spec.Containers[i].Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 }) {
			return true
		}
	}
	return false
}
