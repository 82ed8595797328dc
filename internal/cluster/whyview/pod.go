package whyview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/why"
)

type metav1Owner = metav1.OwnerReference

// stops returns what keeps schedulers from looking at a pod.
func stops(p *corev1.Pod) []why.Stop {
	var list []why.Stop
	switch {
	case p.DeletionTimestamp != nil:
		list = append(list, why.Stop{Code: why.Deleted})
	case ended(p):
		list = append(list, why.Stop{Code: why.Ended})
	case p.Spec.NodeName != "":
		list = append(list, why.Stop{Code: why.Bound, Names: []string{p.Spec.NodeName}})
	case len(p.Spec.SchedulingGates) > 0:
		stop := why.Stop{Code: why.Gated}
		for _, gate := range p.Spec.SchedulingGates {
			stop.Names = append(stop.Names, gate.Name)
		}
		// Kueue's come first: they say who has to act.
		slices.SortStableFunc(stop.Names, func(a, b string) int {
			return cmp.Or(-cmp.Compare(prefixed(a), prefixed(b)), cmp.Compare(a, b))
		})
		list = append(list, stop)
	}
	return list
}

func prefixed(name string) int {
	if strings.HasPrefix(name, why.KueuePrefix) {
		return 1
	}
	return 0
}

func schedulerOf(p *corev1.Pod) string {
	return cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName)
}

// unseen tells whether no pod of the cluster shows that a scheduler runs. The default one is assumed to run.
func (b *builder) unseen(scheduler string) bool {
	return scheduler != corev1.DefaultSchedulerName && !slices.ContainsFunc(b.objects.Pods, func(p corev1.Pod) bool {
		return schedulerOf(&p) == scheduler && (p.Spec.NodeName != "" || messageOf(&p) != "")
	})
}

// messageOf returns what a scheduler has said about a pod.
func messageOf(p *corev1.Pod) string {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
			return c.Message
		}
	}
	return ""
}

// reservedOf returns what a scheduler has said about a pod of places that are reserved for a gang; nil for nothing.
func reservedOf(p *corev1.Pod) *why.Reserved {
	r, found := gangplan.ReservedIn(messageOf(p))
	if !found {
		return nil
	}
	return &why.Reserved{Gang: r.Gang, Priority: r.Priority, Until: r.Until, Before: r.Before}
}

// notJudged names the rules that a pod uses and which are not evaluated.
func notJudged(p *corev1.Pod) []string {
	var list []string
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			list = append(list, "its pod affinity")
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			list = append(list, "its pod anti-affinity")
		}
	}
	if slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == corev1.DoNotSchedule }) {
		list = append(list, "its topology spread constraints")
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.PersistentVolumeClaim != nil {
			list = append(list, "the volume of the PersistentVolumeClaim "+v.PersistentVolumeClaim.ClaimName)
		} else if v.Ephemeral != nil {
			list = append(list, "the ephemeral volume "+v.Name)
		}
	}
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.HostPort > 0 {
				list = append(list, fmt.Sprintf("its host port %d", port.HostPort))
			}
		}
	}
	return slices.Compact(list)
}
