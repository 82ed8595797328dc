package placement

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Score returns the score of the model. A node of which nothing is known gets the lowest.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := read(state)
	if c == nil {
		return 0, nil
	}
	i, ok := p.model.Index(node.Node().Name)
	if !ok || i >= len(c.scores) {
		return 0, nil
	}
	if !c.gpus {
		return int64(max(0, c.scores[i]).Step()), nil
	}
	return int64(c.scores[i]) + 1, nil
}

// ScoreExtensions returns the plugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives the best node 100, the next one 99 and so on, so that the sum of all plugins, in which this one weighs more than
// all others together, has the same order. Among nodes with equal scores the fixed order of the fleet decides; except for pods without
// GPUs and for pods with preferences, where equal nodes stay equal, so that the other plugins decide.
func (p *Plugin) NormalizeScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	c := read(state)
	rank(scores, c != nil && c.gpus && !hasPreferences(pod), p.model.Index)
	return nil
}

// ranks is how many nodes, or groups of equal ones, have a rank of their own.
const ranks = int(fwk.MaxNodeScore)

// rank replaces scores by ranks. The rank of all after the first 100 is 0.
func rank(scores fwk.NodeScoreList, total bool, index func(string) (int, bool)) {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	positions := make([]int, len(scores))
	if total {
		for i := range scores {
			positions[i], _ = index(scores[i].Name)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(scores[b].Score, scores[a].Score), cmp.Compare(positions[a], positions[b]))
	})
	previous, value := int64(-1), int64(ranks)+1
	for _, i := range order {
		score := scores[i].Score
		if total || score != previous {
			value = max(0, value-1)
		}
		previous, scores[i].Score = score, value
	}
}

// hasPreferences tells whether a pod prefers some nodes by itself.
func hasPreferences(pod *v1.Pod) bool {
	for i := range pod.Spec.TopologySpreadConstraints {
		if pod.Spec.TopologySpreadConstraints[i].WhenUnsatisfiable == v1.ScheduleAnyway {
			return true
		}
	}
	a := pod.Spec.Affinity
	if a == nil {
		return false
	}
	return a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAffinity != nil && len(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAntiAffinity != nil && len(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0
}

// SignPod names what of a pod the scores depend on. Pods with equal signatures get equal scores.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	type request struct {
		CPU, Memory int64
		Resource    string
		Devices     int32
		Models      string
		Traffic     fleet.Traffic
	}
	var requests []request
	for _, s := range p.model.Requests(pod) {
		requests = append(requests, request{s.CPU, s.Memory, s.Resource, s.GPUs, s.Models.String(), s.Traffic})
	}
	return []fwk.SignFragment{{Key: "berth.dev/placement", Value: requests}, {Key: "berth.dev/preferences", Value: hasPreferences(pod)}}, nil
}
