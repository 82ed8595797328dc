package cluster

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
)

// Keys by which a pod joins a gang of Berth.
const (
	// PodGroupLabel has the name of the gang.
	PodGroupLabel = "berth.dev/pod-group"
	// MinMemberLabel has the number of pods that are bound together.
	MinMemberLabel = "berth.dev/min-member"
	// TopologyAnnotation has the key of the label of Nodes that has to have one value for all pods of the gang.
	TopologyAnnotation = "berth.dev/topology-required"
	// SegmentAnnotation has the key of the label that has to have one value for all pods of a segment, SegmentSizeAnnotation their number.
	SegmentAnnotation     = "berth.dev/topology-segment"
	SegmentSizeAnnotation = "berth.dev/topology-segment-size"
)

// GangForm is how pods say to which gang they belong.
type GangForm int

const (
	// Labels are Berth's labels of the pods. There is no other object.
	Labels GangForm = iota
	// PodGroups are Kubernetes' own objects, which the pods name in their spec. The API server serves them behind a feature gate.
	PodGroups
)

// podGroup returns the PodGroup of a gang, which has to be bound with all its pods.
func podGroup(g load.Gang) *schedulingv1beta1.PodGroup {
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: g.Name, Namespace: Namespace}}
	group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(g.Pods)}
	if g.TopologyKey != "" {
		group.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: g.TopologyKey}}}
	}
	return group
}

// join makes a pod one of a gang.
func join(p *corev1.Pod, g load.Gang, form GangForm) {
	if form == PodGroups {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &g.Name}
		return
	}
	p.Labels[PodGroupLabel], p.Labels[MinMemberLabel] = g.Name, strconv.Itoa(g.Pods)
	if g.TopologyKey != "" {
		p.Annotations = map[string]string{TopologyAnnotation: g.TopologyKey}
	}
	if g.SegmentKey != "" {
		p.Annotations = map[string]string{SegmentAnnotation: g.SegmentKey, SegmentSizeAnnotation: strconv.Itoa(g.SegmentSize)}
	}
}
