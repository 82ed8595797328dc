package gangplan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// OfKubernetes returns the gang of a PodGroup of Kubernetes' own API. Its members are the given pods, by rank. The level that the PodGroup
// requires in spec.schedulingConstraints counts beside the annotations, of the PodGroup and of the pods. Kubernetes itself lets the members
// wait for one another, and validates what they have to have in common.
func OfKubernetes(group *schedulingv1beta1.PodGroup, members []*corev1.Pod, levels Levels) Gang {
	g := Gang{Key: Key{Source: Kubernetes, Namespace: group.Namespace, Name: group.Name}, Group: group.UID, Min: 1, Members: slices.Clone(members)}
	minimum := int32(0) // Segments divide no minimum where there is none.
	if policy := group.Spec.SchedulingPolicy.Gang; policy != nil {
		g.Min, minimum = max(1, policy.MinCount), policy.MinCount
	}
	byRank(g.Members)
	objects := []annotated{{key: g.Key, annotations: group.Annotations}}
	for _, pod := range g.Members {
		objects = append(objects, annotated{pod: pod, annotations: pod.Annotations})
	}
	if g.Topology, g.Problem = topologyOf(g.Key, objects, levels, minimum); g.Problem == "" {
		g.Problem = g.constrain(group)
	}
	if g.Problem != "" {
		g.Topology = Topology{}
	}
	return g
}

// constrain adds the level that the PodGroup requires.
func (g *Gang) constrain(group *schedulingv1beta1.PodGroup) string {
	constraints := group.Spec.SchedulingConstraints
	if constraints == nil || len(constraints.Topology) == 0 {
		return ""
	}
	key := constraints.Topology[0].Key
	switch required := g.Topology.Required; {
	case len(content.IsLabelKey(key)) > 0:
		return fmt.Sprintf("%s has %s in spec.schedulingConstraints.topology, which is no label key: set the key of a label of nodes", g.Key.title(), quote(key))
	case required != "" && required != key:
		return fmt.Sprintf("gang %s requires one domain of %s by an annotation, and of %s in spec.schedulingConstraints.topology: set the same one",
			g.Key, quote(required), quote(key))
	}
	g.Topology.Required = key
	return ""
}
