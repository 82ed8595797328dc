package gangplan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
)

// MaxMembers is how many members a gang can have.
const MaxMembers = 4096

// Gang is pods of which a minimum has to start together.
type Gang struct {
	Key Key
	// Group is the UID of the PodGroup, empty where there is none.
	Group types.UID
	// Min is how many pods have to start together, Done of which have already succeeded. It is 0 where it is not known.
	Min  int32
	Done int32
	// Members are the pods that wait for a node, or are on one and have not ended, by rank. A gang of more than MaxMembers has none.
	Members []*corev1.Pod
	// Topology is empty when there is a Problem.
	Topology Topology

	// Problem says in one sentence what is wrong with the gang, the evidence and the fix: no member can be placed before it is fixed.
	Problem string
	// Waiting says in one sentence what the gang waits for before it can be placed, other than nodes. It is empty when there is a Problem.
	Waiting string
}

// Build returns the gang of a key. Pods of other gangs in the list do not count. The group is nil where the PodGroup does not exist, and
// always for Labels.
//
// A pod that is being deleted, has failed or has succeeded is no member. One that has succeeded counts as Done while a member has the same
// controller: without it, a Job of which one index has succeeded could never replace the pod of another one. The pods of an earlier Job
// that used the same name do not count, because they have another controller.
//
// A PodGroup that was deleted and created again does not adopt the pods of the old one (kubernetes/kubernetes#139914), which are those
// that were bound to their nodes before it was created. When a pod was created does not matter: one manifest can have pods and their
// PodGroup in any order, and pods are bound only once it exists. Times have seconds: a pod that was bound in the same second stays a
// member, and so does one whose binding is under way or has no time.
func Build(key Key, pods []*corev1.Pod, group *Group, levels Levels) Gang {
	g := Gang{Key: key}
	if key.Source == Labels {
		group = nil
	}
	g.collect(pods, group)
	if group != nil {
		g.Group, g.Min = group.UID, group.Min
	}
	if g.Problem == "" {
		g.Problem = g.check(group, levels)
	}
	if g.Problem == "" {
		g.Waiting = g.wait(group)
	}
	return g
}

// collect finds the members.
func (g *Gang) collect(pods []*corev1.Pod, group *Group) {
	var succeeded []*corev1.Pod
	controllers := map[types.UID]bool{}
	for _, pod := range pods {
		key, ok := KeyOf(pod)
		if !ok || key != g.Key || group != nil && ofOldGroup(pod, group) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			succeeded = append(succeeded, pod)
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
		default:
			g.Members = append(g.Members, pod)
			if uid := controllerOf(pod); uid != "" {
				controllers[uid] = true
			}
		}
	}
	if n := len(g.Members); n > MaxMembers {
		g.Members = nil
		g.Problem = fmt.Sprintf("gang %s has %d members, more than the %d that a gang can have: split it into several", g.Key, n, MaxMembers)
		return
	}
	for _, pod := range succeeded {
		if controllers[controllerOf(pod)] {
			g.Done++
		}
	}
	byRank(g.Members)
}

// controllerOf returns the UID of the controller of a pod, empty for none.
func controllerOf(pod *corev1.Pod) types.UID {
	for i := range pod.OwnerReferences {
		if o := &pod.OwnerReferences[i]; o.Controller != nil && *o.Controller {
			return o.UID
		}
	}
	return ""
}

// ofOldGroup tells whether a pod was bound before the PodGroup was created.
func ofOldGroup(pod *corev1.Pod, group *Group) bool {
	for i := range pod.Status.Conditions {
		// The API server sets it in the same write as the node (pkg/registry/core/pod/storage/storage.go of kubernetes).
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return !c.LastTransitionTime.IsZero() && c.LastTransitionTime.Before(&group.Created)
		}
	}
	return false
}

// foreign says why Berth cannot place the pods of a gang, whatever it wants.
func (g *Gang) foreign() string {
	switch name := g.Key.Name; {
	case g.Key.Source == Labels && len(content.IsLabelValue(name)) > 0:
		return fmt.Sprintf("gang %s has a name that is no label value: set %s to at most 63 letters, digits, '-', '_' and '.'", g.Key, PodGroup)
	case g.Key.Source != Labels && len(content.IsDNS1123Subdomain(name)) > 0:
		return fmt.Sprintf("gang %s has a name that no PodGroup can have: set the name of one", g.Key)
	case g.Key.Source == Volcano:
		if i := slices.IndexFunc(g.Members, ofVolcanoJob); i >= 0 {
			return fmt.Sprintf("%s of gang %s is one of Volcano's Job, which needs the phase Inqueue that only Volcano's scheduler sets: "+
				"use that scheduler, or a Job of another API", podTitle(g.Members[i]), g.Key)
		}
	}
	return ""
}

// check returns the first problem. What it reads of pods it reads in the order of ranks.
func (g *Gang) check(group *Group, levels Levels) string {
	if problem := g.foreign(); problem != "" {
		return problem
	}
	if len(g.Members) == 0 {
		return ""
	}
	if group != nil && group.Problem != "" {
		return group.Problem
	}
	if g.Key.Source == Labels {
		var problem string
		if g.Min, problem = g.minimum(); problem != "" {
			return problem
		}
	}
	if problem := g.mixed(); problem != "" {
		return problem
	}
	objects := make([]annotated, 0, len(g.Members)+1)
	if group != nil {
		objects = append(objects, annotated{key: g.Key, annotations: group.annotations})
	}
	for _, pod := range g.Members {
		objects = append(objects, annotated{pod: pod, annotations: pod.Annotations})
	}
	var problem string
	g.Topology, problem = topologyOf(g.Key, objects, levels, g.Min)
	return problem
}

// minimum returns the minimum that the pods say. One that does not say it agrees with the others.
func (g *Gang) minimum() (int32, string) {
	var from *corev1.Pod
	var minimum int64
	for _, pod := range g.Members {
		text := labelOrAnnotation(pod, MinMember)
		if text == "" {
			continue
		}
		n, ok := count(text)
		if !ok {
			return 0, noCount(MinMember, podTitle(pod), text, fixMinimum)
		}
		if from != nil && n != minimum {
			return 0, differ(g.Key, MinMember, fmt.Sprint(minimum), podTitle(from), fmt.Sprint(n), podTitle(pod))
		}
		if from == nil {
			from, minimum = pod, n
		}
	}
	if from == nil {
		return 0, fmt.Sprintf("gang %s has no minimum, because %s has no label %s: %s", g.Key, podTitle(g.Members[0]), MinMember, fixMinimum)
	}
	return int32(minimum), ""
}

// mixed says in what members differ that one decision about all of them needs to be equal.
func (g *Gang) mixed() string {
	first := g.Members[0]
	for _, pod := range g.Members[1:] {
		switch {
		case schedulerOf(pod) != schedulerOf(first):
			return differ(g.Key, "spec.schedulerName", plain(schedulerOf(first)), podTitle(first), plain(schedulerOf(pod)), podTitle(pod))
		case priorityOf(pod) != priorityOf(first):
			return differ(g.Key, "spec.priority", fmt.Sprint(priorityOf(first)), podTitle(first), fmt.Sprint(priorityOf(pod)), podTitle(pod))
		case preemptionOf(pod) != preemptionOf(first):
			return differ(g.Key, "spec.preemptionPolicy", plain(string(preemptionOf(first))), podTitle(first), plain(string(preemptionOf(pod))), podTitle(pod))
		}
	}
	return ""
}

func schedulerOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func preemptionOf(pod *corev1.Pod) corev1.PreemptionPolicy {
	if pod.Spec.PreemptionPolicy == nil {
		return corev1.PreemptLowerPriority
	}
	return *pod.Spec.PreemptionPolicy
}

// wait says what the gang waits for. Members with scheduling gates exist but cannot be placed.
func (g *Gang) wait(group *Group) string {
	switch {
	case g.Key.Source != Labels && group == nil:
		return g.Key.title() + " does not exist"
	case group != nil && group.Deleting:
		return g.Key.title() + " is being deleted"
	}
	have := int64(len(g.Members)) + int64(g.Done)
	switch {
	case len(g.Members) == 0:
		return fmt.Sprintf("no member of gang %s exists", g.Key)
	case have < int64(g.Min) && g.Min-g.Done > MaxMembers:
		return fmt.Sprintf("%d of %d members of gang %s exist, and a gang can have only %d: set a smaller minimum", have, g.Min, g.Key, MaxMembers)
	case have < int64(g.Min):
		return fmt.Sprintf("%d of %d members of gang %s exist", have, g.Min, g.Key)
	}
	var gated *corev1.Pod
	for _, pod := range g.Members {
		if len(pod.Spec.SchedulingGates) > 0 {
			have--
			if gated == nil {
				gated = pod
			}
		}
	}
	if have < int64(g.Min) {
		return fmt.Sprintf("%d of %d members of gang %s have no scheduling gates; %s has %s", have, g.Min, g.Key, podTitle(gated), quote(gated.Spec.SchedulingGates[0].Name))
	}
	return ""
}
