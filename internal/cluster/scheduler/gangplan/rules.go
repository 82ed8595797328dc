package gangplan

import (
	"encoding/json"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Signature names what of a member other plugins look at: members with equal ones can use the same nodes.
func Signature(pod *v1.Pod) (string, error) {
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
	// single is true where two members do not run on one node.
	single bool
}

func newRules(pod *v1.Pod) rules {
	return rules{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), amounts: Amounts(pod), single: alone(pod)}
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
		left := Free(node, name)
		room = min(room, max(0, left.Value()/amount.Value()))
	}
	if r.single {
		room = min(room, 1)
	}
	return int32(room)
}

// alone tells whether two pods like this one do not run on one node: they use a port of the host, or repel one another.
func alone(pod *v1.Pod) bool {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.HostPort > 0 {
				return true
			}
		}
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err == nil && term.TopologyKey == v1.LabelHostname && selector.Matches(labels.Set(pod.Labels)) {
			return true
		}
	}
	return false
}

// Free returns what no pod of a node has of a resource.
func Free(node fwk.NodeInfo, name v1.ResourceName) resource.Quantity {
	all, used := node.GetAllocatable(), node.GetRequested()
	switch name {
	case v1.ResourceCPU:
		return *resource.NewMilliQuantity(all.GetMilliCPU()-used.GetMilliCPU(), resource.DecimalSI)
	case v1.ResourceMemory:
		return *resource.NewQuantity(all.GetMemory()-used.GetMemory(), resource.BinarySI)
	case v1.ResourceEphemeralStorage:
		return *resource.NewQuantity(all.GetEphemeralStorage()-used.GetEphemeralStorage(), resource.BinarySI)
	case v1.ResourcePods:
		return *resource.NewQuantity(int64(all.GetAllowedPodNumber()-len(node.GetPods())), resource.DecimalSI)
	}
	return *resource.NewQuantity(all.GetScalarResources()[name]-used.GetScalarResources()[name], resource.DecimalSI)
}

// Amounts returns all that a pod requests of a node, itself included.
func Amounts(pod *v1.Pod) v1.ResourceList {
	amounts := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	amounts[v1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return amounts
}
