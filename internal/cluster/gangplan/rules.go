package gangplan

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Signature names what of a member the rules of Kubernetes look at: members with equal ones can use the same nodes.
func Signature(pod *corev1.Pod) (string, error) {
	spec := corev1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations, NodeName: pod.Spec.NodeName,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Overhead: pod.Spec.Overhead, HostNetwork: pod.Spec.HostNetwork,
		Resources: pod.Spec.Resources,
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil || volume.CSI != nil {
			spec.Volumes = append(spec.Volumes, *volume)
		}
	}
	spec.ResourceClaims = append(spec.ResourceClaims, pod.Spec.ResourceClaims...)
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			spec.Containers = append(spec.Containers, corev1.Container{Resources: list[i].Resources, Ports: list[i].Ports, RestartPolicy: list[i].RestartPolicy})
		}
	}
	text, err := json.Marshal(spec)
	if repelsItself(pod) {
		text = append(text, " repels pods like itself"...)
	}
	return string(text), err
}

// repelsItself tells whether two pods like one do not run on one node.
func repelsItself(pod *corev1.Pod) bool {
	return slices.ContainsFunc(repelled(pod), func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) })
}

// Rules are those of Kubernetes by which nodes let members run, as far as they do not depend on other pods.
type Rules struct {
	// Single is true where two members do not run on one node.
	Single bool

	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	amounts  corev1.ResourceList
	// repelled select pods that must not be on the node of the member.
	repelled []labels.Selector
	// ports are those of the host that the member uses.
	ports []hostPort
}

// hostPort is a port of a node. Two of one number and protocol exclude each other unless they are of two addresses.
type hostPort struct {
	number   int32
	protocol corev1.Protocol
	address  string
}

// NewRules returns the rules of a pod.
func NewRules(pod *corev1.Pod) Rules {
	r := Rules{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), amounts: Amounts(pod), repelled: repelled(pod), ports: hostPorts(&pod.Spec)}
	r.Single = len(r.ports) > 0 || repelsItself(pod)
	return r
}

// Repels tells whether the member does not run on a node of some other pods.
func (r *Rules) Repels() bool { return len(r.repelled) > 0 || len(r.ports) > 0 }

// RepelledBy tells whether the member does not run on the node of a pod.
func (r *Rules) RepelledBy(pod *corev1.Pod) bool {
	matches := func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) }
	return r.sharesPort(hostPorts(&pod.Spec)) || pod.Namespace == r.pod.Namespace && slices.ContainsFunc(r.repelled, matches)
}

// Capacity returns how many members can run on a node by what package fleet does not look at. Free returns what no pod of the node has of a
// resource, and counted tells which resources package fleet looks at.
func (r *Rules) Capacity(n *corev1.Node, free func(corev1.ResourceName) resource.Quantity, counted func(corev1.ResourceName) bool) int32 {
	if ok, err := r.affinity.Match(n); err != nil || !ok {
		return 0
	}
	if len(n.Spec.Taints) > 0 || n.Spec.Unschedulable {
		taints := n.Spec.Taints
		if n.Spec.Unschedulable {
			taints = append(slices.Clip(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		}
		matters := func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}
		if _, found := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, r.pod.Spec.Tolerations, matters, false); found {
			return 0
		}
	}
	capacity := int64(math.MaxInt32)
	for name, amount := range r.amounts {
		if counted(name) || amount.IsZero() {
			continue
		}
		capacity = min(capacity, max(0, Amount(name, free(name))/Amount(name, amount)))
	}
	if r.Single {
		capacity = min(capacity, 1)
	}
	return int32(capacity)
}

// Times returns how many members fit in amounts, of which only the resources that these name count.
func (r *Rules) Times(left corev1.ResourceList) int32 {
	times := int64(math.MaxInt32)
	for name, amount := range r.amounts {
		have, named := left[name]
		if named && !amount.IsZero() {
			times = min(times, max(0, Amount(name, have)/Amount(name, amount)))
		}
	}
	return int32(times)
}

// Amounts returns all that a pod requests of a node, itself included; of one that runs and is being resized, what the node counts.
func Amounts(pod *corev1.Pod) corev1.ResourceList {
	amounts := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	amounts[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return amounts
}

// sharesPort tells whether the member uses one of some ports.
func (r *Rules) sharesPort(ports []hostPort) bool {
	return slices.ContainsFunc(ports, func(a hostPort) bool { return slices.ContainsFunc(r.ports, a.excludes) })
}

// excludes tells whether two pods with these ports do not run on one node.
func (a hostPort) excludes(b hostPort) bool {
	return a.number == b.number && a.protocol == b.protocol && (a.address == b.address || a.address == anyAddress || b.address == anyAddress)
}

const anyAddress = "0.0.0.0"

// UsesHostPort tells whether a pod uses a port of the host while it runs.
func UsesHostPort(spec *corev1.PodSpec) bool { return len(hostPorts(spec)) > 0 }

// hostPorts returns the ports of the host that a pod uses while it runs: those of its containers, and of init containers that run beside
// these.
func hostPorts(spec *corev1.PodSpec) (ports []hostPort) {
	add := func(list []corev1.ContainerPort) {
		for _, port := range list {
			if port.HostPort > 0 {
				ports = append(ports, hostPort{port.HostPort, cmp.Or(port.Protocol, corev1.ProtocolTCP), cmp.Or(port.HostIP, anyAddress)})
			}
		}
	}
	for i := range spec.Containers {
		add(spec.Containers[i].Ports)
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c.Ports)
		}
	}
	return ports
}

// repelled returns what selects the pods of its own namespace with which a pod does not run on one node.
func repelled(pod *corev1.Pod) (selectors []labels.Selector) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname || len(term.Namespaces) > 0 || term.NamespaceSelector != nil || term.LabelSelector == nil {
			continue // The other plugins decide.
		}
		// The API server has added matchLabelKeys and mismatchLabelKeys to the selector.
		if selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector); err == nil {
			selectors = append(selectors, selector)
		}
	}
	return selectors
}
