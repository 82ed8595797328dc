package preemption

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"
)

const (
	// mostNodes is on how many nodes victims are chosen, if DefaultPreemption would not look at more.
	mostNodes = 256
	// morePlans is how many plans for a node are checked when the filters refuse the best one.
	morePlans = 8
)

// chooser is how the evaluator chooses for pods with GPUs. What it does not define is DefaultPreemption's.
type chooser struct {
	*defaultpreemption.DefaultPreemption
	plugin *Plugin
}

var _ preemption.Interface = (*chooser)(nil)

// GetOffsetAndNumCandidates returns with which node to begin, and how many to find. All of up to mostNodes are compared.
func (c *chooser) GetOffsetAndNumCandidates(nodes int32) (int32, int32) {
	offset, candidates := c.DefaultPreemption.GetOffsetAndNumCandidates(nodes)
	return offset, max(candidates, min(nodes, mostNodes))
}

// PodEligibleToPreemptOthers also refuses a pod while claims on the node that it is nominated to are being released.
func (c *chooser) PodEligibleToPreemptOthers(ctx context.Context, pod *v1.Pod, nominated *fwk.Status) (bool, string) {
	if ok, why := c.DefaultPreemption.PodEligibleToPreemptOthers(ctx, pod, nominated); !ok {
		return false, why
	}
	if a := attemptOf(ctx); a != nil && a.claims && c.plugin.releasing(pod.Status.NominatedNodeName) {
		return false, "not eligible while ResourceClaims of pods that have ended are released on the nominated node."
	}
	return true, ""
}

// SelectVictimsOnNode chooses which pods of a node to end.
func (c *chooser) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, all []*preemption.DomainVictim,
	budgets []*policy.PodDisruptionBudget,
) ([]*v1.Pod, int, *fwk.Status) {
	a := attemptOf(ctx)
	if a == nil {
		return c.DefaultPreemption.SelectVictimsOnNode(ctx, state, pod, node, all, budgets)
	}
	q, known := c.plugin.question(a, pod, node, c.allowed(pod, all), budgets)
	if known {
		if victims, ok := c.plans(ctx, a, state, pod, node, q); ok {
			a.setScore(node.Node().Name, q.score(victims))
			return pods(victims), violations(victims, budgets), nil
		}
	}
	ended, broken, status := c.DefaultPreemption.SelectVictimsOnNode(ctx, state, pod, node, all, budgets)
	if !status.IsSuccess() {
		return ended, broken, status
	}
	if known {
		a.setScore(node.Node().Name, q.scoreOf(ended))
	}
	// DefaultPreemption counts by all pods that it might have ended: one that shares its budget with a pod that it spares can count as a
	// violation there. Nodes are compared by what ends.
	return ended, violations(victimsOf(all, ended), budgets), status
}

// victimsOf returns those of the victims that pods are part of.
func victimsOf(all []*preemption.DomainVictim, pods []*v1.Pod) []*preemption.DomainVictim {
	return slices.DeleteFunc(slices.Clone(all), func(v *preemption.DomainVictim) bool {
		return !slices.ContainsFunc(v.Pods(), func(info fwk.PodInfo) bool {
			return slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return pod.UID == info.GetPod().UID })
		})
	})
}

// allowed returns the victims that the pod may end, the most important first.
func (c *chooser) allowed(pod *v1.Pod, all []*preemption.DomainVictim) []*preemption.DomainVictim {
	priority := corev1helpers.PodPriority(pod)
	victims := slices.DeleteFunc(slices.Clone(all), func(v *preemption.DomainVictim) bool {
		if v.Priority() >= priority {
			return true
		}
		for _, node := range v.AffectedNodes() {
			if !c.IsEligiblePod(node, v, pod) {
				return true
			}
		}
		return false
	})
	slices.SortFunc(victims, func(a, b *preemption.DomainVictim) int {
		switch {
		case c.MoreImportantVictim(a, b):
			return -1
		case c.MoreImportantVictim(b, a):
			return 1
		}
		return cmp.Compare(nameOf(a), nameOf(b))
	})
	return victims
}

// nameOf returns the name of a victim's first pod.
func nameOf(v *preemption.DomainVictim) string {
	pod := v.Pods()[0].GetPod()
	return pod.Namespace + "/" + pod.Name
}

// plans returns the best victims without which the filters accept the node.
func (c *chooser) plans(ctx context.Context, a *attempt, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, q *question) ([]*preemption.DomainVictim, bool) {
	tried := 0
	for _, most := range []int{1, morePlans} {
		plans, err := q.Plans(most)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The in-tree choice of victims is used", "node", klog.KObj(node.Node()), "pod", klog.KObj(pod))
			return nil, false
		}
		for _, plan := range plans[min(tried, len(plans)):] {
			victims := q.of(plan.Victims)
			if c.plugin.accepted(ctx, a, state.Clone(), pod, node.Snapshot(), victims) {
				return victims, true
			}
		}
		if tried = len(plans); tried < most {
			break
		}
	}
	return nil, false
}

// accepted tells whether the pod can run on a node when the victims have ended. It changes the state and the node.
func (p *Plugin) accepted(ctx context.Context, a *attempt, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, victims []*preemption.DomainVictim) bool {
	logger, name := klog.FromContext(ctx), node.Node().Name
	for _, v := range victims {
		for _, info := range v.Pods() {
			// Pods of a group run on other nodes, too; these are only shown to the plugins that count them.
			on := node
			if at := info.GetPod().Spec.NodeName; at != name {
				on = v.AffectedNodes()[at]
			} else if err := node.RemovePod(logger, info.GetPod()); err != nil {
				return false
			}
			if !p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, info, on).IsSuccess() {
				return false
			}
		}
	}
	status := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
	return status.IsSuccess() || status.Plugin() == claimsPlugin && p.claimsFit(ctx, a, pod, node.Node(), victims)
}

// pods returns the pods of victims.
func pods(victims []*preemption.DomainVictim) []*v1.Pod {
	var list []*v1.Pod
	for _, v := range victims {
		for _, info := range v.Pods() {
			list = append(list, info.GetPod())
		}
	}
	return list
}

// violations returns how many of the victims' pods the budgets do not allow to end.
func violations(victims []*preemption.DomainVictim, budgets []*policy.PodDisruptionBudget) int {
	violating, _ := preemption.FilterVictimsWithPDBViolation(victims, budgets)
	sum := 0
	for _, v := range violating {
		sum += v.ViolateCount
	}
	return sum
}

// OrderedScoreFuncs returns the order between nodes: fewest violations of budgets, lowest highest priority, fewest pods, best GPUs,
// lowest sum of priorities, latest start of the pods with the highest priority, and then by name.
func (c *chooser) OrderedScoreFuncs(ctx context.Context, nodes map[string]*extenderv1.Victims) []func(string) int64 {
	a := attemptOf(ctx)
	if a == nil {
		return nil
	}
	position := map[string]int64{}
	for i, name := range slices.Sorted(maps.Keys(nodes)) {
		position[name] = int64(i)
	}
	return []func(string) int64{
		func(node string) int64 { return -nodes[node].NumPDBViolations },
		func(node string) int64 { return -int64(highest(nodes[node].Pods)) },
		func(node string) int64 { return -int64(len(nodes[node].Pods)) },
		func(node string) int64 { return int64(a.score(node)) },
		func(node string) int64 { return -sum(nodes[node].Pods) },
		func(node string) int64 { return started(nodes[node]) },
		func(node string) int64 { return -position[node] },
	}
}

func highest(pods []*v1.Pod) int32 {
	most := int32(math.MinInt32)
	for _, pod := range pods {
		most = max(most, corev1helpers.PodPriority(pod))
	}
	return most
}

func sum(pods []*v1.Pod) int64 {
	total := int64(0)
	for _, pod := range pods {
		total += int64(corev1helpers.PodPriority(pod))
	}
	return total
}

// started returns when the first of the pods with the highest priority started, in nanoseconds.
func started(victims *extenderv1.Victims) int64 {
	if start := util.GetEarliestPodStartTime(victims); start != nil {
		return start.UnixNano()
	}
	return math.MinInt64
}
