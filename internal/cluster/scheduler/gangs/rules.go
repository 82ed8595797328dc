package gangs

import (
	"encoding/json"
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// signature names what of a member other plugins look at: members with equal ones can use the same nodes.
func signature(pod *v1.Pod) (string, error) {
	spec := v1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations, NodeName: pod.Spec.NodeName,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Overhead: pod.Spec.Overhead, HostNetwork: pod.Spec.HostNetwork,
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil || volume.CSI != nil {
			spec.Volumes = append(spec.Volumes, *volume)
		}
	}
	for i := range pod.Spec.ResourceClaims {
		spec.ResourceClaims = append(spec.ResourceClaims, pod.Spec.ResourceClaims[i])
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			spec.Containers = append(spec.Containers, v1.Container{Resources: list[i].Resources, Ports: list[i].Ports, RestartPolicy: list[i].RestartPolicy})
		}
	}
	text, err := json.Marshal(spec)
	return string(text), err
}

// rules are those of Kubernetes by which nodes let members run, as far as they do not depend on other pods.
type rules struct {
	pod      *v1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	amounts  v1.ResourceList
	// repelled select pods that must not be on the node of the member.
	repelled []labels.Selector
	// single is true where two members do not run on one node.
	single bool
}

func newRules(pod *v1.Pod) rules {
	r := rules{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), amounts: amountsOf(pod), repelled: repelled(pod), single: usesPort(pod)}
	for _, selector := range r.repelled {
		r.single = r.single || selector.Matches(labels.Set(pod.Labels))
	}
	return r
}

// room returns how many members can run on a node by what package fleet does not look at.
func (r *rules) room(node fwk.NodeInfo, counted func(v1.ResourceName) bool) int32 {
	n := node.Node()
	if ok, err := r.affinity.Match(n); err != nil || !ok {
		return 0
	}
	if len(n.Spec.Taints) > 0 || n.Spec.Unschedulable {
		taints := n.Spec.Taints
		if n.Spec.Unschedulable {
			taints = append(taints[:len(taints):len(taints)], v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
		}
		matters := func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}
		if _, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, r.pod.Spec.Tolerations, matters, false); found {
			return 0
		}
	}
	room := int64(math.MaxInt32)
	for name, amount := range r.amounts {
		if counted(name) || amount.IsZero() {
			continue
		}
		left := free(node, name)
		room = min(room, max(0, left.Value()/amount.Value()))
	}
	if r.single {
		room = min(room, 1)
	}
	for _, selector := range r.repelled {
		for _, info := range node.GetPods() {
			if pod := info.GetPod(); pod.Namespace == r.pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
				return 0
			}
		}
	}
	return int32(room)
}

// usesPort tells whether a pod uses a port of the host.
func usesPort(pod *v1.Pod) bool {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.HostPort > 0 {
				return true
			}
		}
	}
	return false
}

// repelled returns what selects the pods of its own namespace with which a pod does not run on one node.
func repelled(pod *v1.Pod) (selectors []labels.Selector) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != v1.LabelHostname || len(term.Namespaces) > 0 || term.NamespaceSelector != nil || len(term.MatchLabelKeys) > 0 || len(term.MismatchLabelKeys) > 0 {
			continue // The other plugins decide.
		}
		if selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector); err == nil && !selector.Empty() {
			selectors = append(selectors, selector)
		}
	}
	return selectors
}
