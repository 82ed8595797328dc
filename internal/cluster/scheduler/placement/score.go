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
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := read(state)
	if c == nil {
		return 0, nil
	}
	i, ok := p.model.Index(node.Node().Name)
	if !ok || i >= len(c.scores) {
		return 0, nil
	}
	if !c.gpus && !c.claims {
		return int64(max(0, c.scores[i]).Step()), nil
	}
	return raw(c.scores[i], i, hasPreferences(pod)), nil
}

// positionBits are the bits of a raw score that have the position of the node in the fixed order. Nodes behind the last position are equal.
const positionBits = 63 - fleet.ScoreBits - 1

// raw returns a score with the position of the node, the first one being the best: among equal scores the fixed order decides. For a pod
// with preferences equal scores stay equal, so that the other plugins decide. It is 0 for a node on which the pod does not fit.
func raw(score fleet.Score, position int, preferences bool) int64 {
	const last = 1<<positionBits - 1
	if score < 0 {
		return 0
	}
	if preferences {
		position = last
	}
	return (int64(score)+1)<<positionBits | int64(last-min(position, last))
}

// ScoreExtensions returns the plugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives the best node 100, the next one 99 and so on, so that the sum of all plugins, in which this one weighs more than
// all others together, has the same order. Nodes with equal scores get the same: the other plugins decide among them.
func (p *Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	rank(scores)
	return nil
}

// rank replaces scores by ranks. The rank of all after the first 100 is 0.
func rank(scores fwk.NodeScoreList) {
	descending := func(a, b int64) int { return cmp.Compare(b, a) }
	// The best scores, each once. Few of the scores of many nodes get into the list.
	best := make([]int64, 0, fwk.MaxScore+1)
	for i := range scores {
		if len(best) == int(fwk.MaxScore) && scores[i].Score <= best[len(best)-1] {
			continue
		}
		if at, found := slices.BinarySearchFunc(best, scores[i].Score, descending); !found {
			best = slices.Insert(best, at, scores[i].Score)
			best = best[:min(len(best), int(fwk.MaxScore))]
		}
	}
	for i := range scores {
		if scores[i].Score < best[len(best)-1] {
			scores[i].Score = 0
			continue
		}
		at, found := slices.BinarySearchFunc(best, scores[i].Score, descending)
		scores[i].Score = 0
		if found {
			scores[i].Score = fwk.MaxScore - int64(at)
		}
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
		CPU      int64
		Memory   int64
		Resource string
		Devices  int32
		Models   string
		Traffic  fleet.Traffic
	}
	var requests []request
	for _, s := range p.model.Requests(pod) {
		requests = append(requests, request{s.CPU, s.Memory, s.Resource, s.GPUs, s.Models.String(), s.Traffic})
	}
	return []fwk.SignFragment{{Key: "berth.dev/placement", Value: requests}, {Key: "berth.dev/preferences", Value: hasPreferences(pod)}}, nil
}
