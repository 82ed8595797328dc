package podgroups

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// maxRank is above the rank of every placement in a score.
const maxRank = 1 << 16

// ScorePlacement gives a placement with more members a higher score, and of those with as many the one that comes first.
func (p *Plugin) ScorePlacement(_ context.Context, state fwk.PlacementCycleState, _ fwk.PodGroupInfo, placement *fwk.PodGroupAssignments) (int64, *fwk.Status) {
	c := candidateOf(state)
	if c == nil {
		return 0, nil
	}
	return int64(len(placement.ProposedAssignments)+1)*maxRank - int64(min(c.rank, maxRank-1)), nil
}

// PlacementScoreExtensions returns the plugin.
func (p *Plugin) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return p }

// NormalizePlacementScore gives the best placement the highest score, and each following one less.
func (p *Plugin) NormalizePlacementScore(_ context.Context, _ fwk.PodGroupCycleState, _ fwk.PodGroupInfo, scores []fwk.PlacementScore) *fwk.Status {
	values := make([]int64, 0, len(scores))
	for _, s := range scores {
		values = append(values, s.Score)
	}
	slices.SortFunc(values, func(a, b int64) int { return cmp.Compare(b, a) })
	values = slices.Compact(values)
	for i := range scores {
		scores[i].Score = max(fwk.MinScore, fwk.MaxScore-int64(slices.Index(values, scores[i].Score)))
	}
	return nil
}

// PreScore skips the score of pods that have no preferred node.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if c := candidateOf(state); c == nil || !c.hint || c.nodes[pod.UID] == "" {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score gives the preferred node of a member the highest score.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	if c := candidateOf(state); c != nil && c.nodes[pod.UID] == node.Node().Name {
		return fwk.MaxScore, nil
	}
	return fwk.MinScore, nil
}

// ScoreExtensions returns nil: the scores are in the range already.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
