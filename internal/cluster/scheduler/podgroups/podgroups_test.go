package podgroups

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// state is that of a cycle, a placement or a pod group.
type state struct {
	fwk.CycleState
	data  map[fwk.StateKey]fwk.StateData
	group *groupState
	place *placeState
}

type groupState struct {
	fwk.PodGroupCycleState
	state
}

type placeState struct {
	fwk.PlacementCycleState
	state
}

func newState() state { return state{data: map[fwk.StateKey]fwk.StateData{}} }

func (s state) Read(key fwk.StateKey) (fwk.StateData, error) {
	if d, ok := s.data[key]; ok {
		return d, nil
	}
	return nil, fwk.ErrNotFound
}
func (s state) Write(key fwk.StateKey, d fwk.StateData)                  { s.data[key] = d }
func (s state) IsPodGroupSchedulingCycle() bool                          { return s.group != nil }
func (s state) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState       { return s.group }
func (s state) GetPlacementCycleState() fwk.PlacementCycleState          { return s.place }
func (s *groupState) Read(k fwk.StateKey) (fwk.StateData, error)         { return s.state.Read(k) }
func (s *groupState) Write(k fwk.StateKey, d fwk.StateData)              { s.state.Write(k, d) }
func (s *placeState) Read(k fwk.StateKey) (fwk.StateData, error)         { return s.state.Read(k) }
func (s *placeState) Write(k fwk.StateKey, d fwk.StateData)              { s.state.Write(k, d) }
func (s *placeState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return s.group }

// of returns the state of a member's cycle in a placement of a group.
func of(group *groupState, place *placeState) state {
	s := newState()
	s.group, s.place = group, place
	return s
}

func member(name string) *v1.Pod {
	group := "train"
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{SchedulingGroup: &v1.PodSchedulingGroup{PodGroupName: &group}}}
}

type node struct {
	fwk.NodeInfo
	name string
}

// Node returns a node with two nodes in each rack.
func (n node) Node() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"rack": fmt.Sprintf("r%d", (n.name[1]-'0')/2)}}}
}

// TestPinned: each member has its own node in each placement, and when one placement is complete, the later ones are refused.
func TestPinned(t *testing.T) {
	p := &Plugin{topologyAware: true}
	group := &groupState{state: newState()}
	pods := []*v1.Pod{member("a"), member("b"), member("surplus")}
	if _, status := p.PreFilter(t.Context(), of(group, &placeState{state: newState()}), pods[0], nil); !status.IsSkip() {
		t.Errorf("without placements of the plugin: %v, want it to be skipped", status)
	}
	group.Write(Name, &round{candidates: []*candidate{
		{rank: 0, nodes: map[types.UID]string{"a": "n0", "b": "n1"}, members: 2},
		{rank: 1, nodes: map[types.UID]string{"a": "n2", "b": "n3"}, members: 2},
		{rank: 2, members: 3},
	}})
	try := func(place *placeState, pod *v1.Pod) (state, string) {
		s := of(group, place)
		result, status := p.PreFilter(t.Context(), s, pod, nil)
		switch {
		case status.IsSkip():
			return s, "any"
		case status.Code() == fwk.UnschedulableAndUnresolvable:
			return s, "none"
		case !status.IsSuccess():
			t.Fatal(status)
		}
		return s, result.NodeNames.UnsortedList()[0]
	}
	first, second, third := &placeState{state: newState()}, &placeState{state: newState()}, &placeState{state: newState()}
	steps := []struct {
		place   *placeState
		pod     int
		want    string
		reserve bool
	}{
		{first, 0, "n0", true}, {first, 1, "n1", false}, {first, 2, "none", false}, // Another plugin refuses the second member.
		{second, 0, "n2", true}, {second, 1, "n3", true}, {second, 2, "none", false},
		{third, 0, "none", false}, {third, 1, "none", false}, {third, 2, "none", false}, // The second placement is complete.
	}
	for i, step := range steps {
		s, got := try(step.place, pods[step.pod])
		if got != step.want {
			t.Errorf("step %d: the node is %s, want %s", i, got, step.want)
		}
		for _, name := range []string{"n0", "n1", "n2", "n3"} {
			if fits := p.Filter(t.Context(), s, pods[step.pod], node{name: name}).IsSuccess(); step.want != "none" && fits != (name == step.want) {
				t.Errorf("step %d: Filter lets %s be used: %v", i, name, fits)
			}
		}
		if step.reserve {
			p.Reserve(t.Context(), s, pods[step.pod], got)
		}
	}
	for i, place := range []*placeState{first, second} {
		if c := candidateOf(place); c == nil || c.rank != i {
			t.Errorf("placement %d has %+v", i, c)
		}
	}
}

// TestUnpinned: a placement without nodes lets members use any, and is complete with all of them.
func TestUnpinned(t *testing.T) {
	p := &Plugin{topologyAware: true}
	group := &groupState{state: newState()}
	group.Write(Name, &round{candidates: []*candidate{{members: 2}, {rank: 1, members: 2}}})
	first, second := &placeState{state: newState()}, &placeState{state: newState()}
	for i, place := range []*placeState{first, first, second} {
		s := of(group, place)
		_, status := p.PreFilter(t.Context(), s, member("a"), nil)
		if want := place == first; status.IsSkip() != want {
			t.Fatalf("member %d: %v; want it to be skipped: %v", i, status, want)
		}
		if !p.Filter(t.Context(), s, member("a"), node{name: "n7"}).IsSuccess() {
			t.Errorf("member %d: Filter refuses a node", i)
		}
		p.Reserve(t.Context(), s, member(string(rune('a'+i))), "n7")
	}
}

// TestScorePlacement: more members are better, then the earlier placement, whatever the order in which they are scored.
func TestScorePlacement(t *testing.T) {
	p := &Plugin{}
	placements := map[string]struct {
		rank    int
		members int
		want    int64
	}{"few": {0, 3, 98}, "first": {1, 4, 100}, "second": {2, 4, 99}, "fewest": {3, 1, 97}}
	var scores []fwk.PlacementScore
	for name, c := range placements {
		place := &placeState{state: newState()}
		place.Write(Name, &candidate{rank: c.rank})
		score, status := p.ScorePlacement(t.Context(), place, nil, &fwk.PodGroupAssignments{ProposedAssignments: make([]fwk.ProposedAssignment, c.members)})
		if !status.IsSuccess() {
			t.Fatal(status)
		}
		scores = append(scores, fwk.PlacementScore{Placement: &fwk.Placement{Name: name}, Score: score})
	}
	if status := p.NormalizePlacementScore(t.Context(), nil, nil, scores); !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, s := range scores {
		if want := placements[s.Placement.Name].want; s.Score != want {
			t.Errorf("%s: %d, want %d", s.Placement.Name, s.Score, want)
		}
	}
}

// TestPlain lists what the planner does not know of a pod.
func TestPlain(t *testing.T) {
	tests := map[string]struct {
		spec v1.PodSpec
		want bool
	}{
		"nothing":       {v1.PodSpec{NodeSelector: map[string]string{"a": "b"}, Volumes: []v1.Volume{{Name: "scratch"}}}, true},
		"node affinity": {v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{}}}, true},
		"pod affinity":  {v1.PodSpec{Affinity: &v1.Affinity{PodAffinity: &v1.PodAffinity{}}}, false},
		"anti-affinity": {v1.PodSpec{Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{}}}, false},
		"volume":        {v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}}, false},
		"claim":         {v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{}}}, false},
		"port":          {v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}}, false},
		"sidecar port": {v1.PodSpec{InitContainers: []v1.Container{
			{Ports: []v1.ContainerPort{{HostPort: 80}}, RestartPolicy: new(v1.ContainerRestartPolicyAlways)},
		}}, false},
		"init port": {v1.PodSpec{InitContainers: []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}}, true},
		"spreading": {v1.PodSpec{TopologySpreadConstraints: []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.DoNotSchedule}}}, false},
		"soft":      {v1.PodSpec{TopologySpreadConstraints: []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.ScheduleAnyway}}}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := plain(&test.spec); got != test.want {
				t.Errorf("plain is %v, want %v", got, test.want)
			}
		})
	}
}

// TestPinnedNodes: a placement of a plan has each node of it once, and none is made without nodes.
func TestPinnedNodes(t *testing.T) {
	if c := pinned("x", map[types.UID]string{"a": "gone"}, []*v1.Pod{member("a")}, map[string]fwk.NodeInfo{}); c != nil {
		t.Errorf("a placement without nodes: %+v", c)
	}
	c := pinned("x", map[types.UID]string{"a": "n1", "b": "n0", "c": "n1"}, []*v1.Pod{member("a"), member("b"), member("c"), member("d")},
		map[string]fwk.NodeInfo{"n0": node{name: "n0"}, "n1": node{name: "n1"}})
	var names []string
	for _, n := range c.placement.Nodes {
		names = append(names, n.Node().Name)
	}
	if c.members != 3 || !slices.Equal(names, []string{"n1", "n0"}) {
		t.Errorf("%d members on %v; want 3 on n1, n0", c.members, names)
	}
}

// TestCandidates: which placements there are, and their order.
func TestCandidates(t *testing.T) {
	parent := &fwk.Placement{}
	var plans []gangplanner.Plan
	for i := range 10 {
		name := fmt.Sprintf("n%d", i)
		parent.Nodes = append(parent.Nodes, node{name: name})
		plan := gangplanner.Plan{Places: map[types.UID]gangplanner.Place{"a": {Node: fmt.Sprintf("n%d", 9-i)}}, Domain: fmt.Sprintf("d%d", 9-i)}
		plans = append(plans, plan)
	}
	plans = plans[:7]
	tests := map[string]struct {
		topology  gangplan.Topology
		plans     []gangplanner.Plan
		nominated string
		want      []string // the name with the number of nodes, "!" for pinned ones
	}{
		"no requirement":        {plans: plans, want: []string{"d9 1!", "d8 1!", "d7 1!", "d6 1!", "d5 1!", "d4 1!", "d3 1!", "all 10"}},
		"one plan":              {plans: plans[:1], want: []string{"d9 1!", "all 10"}},
		"required":              {topology: gangplan.Topology{Required: "rack"}, plans: plans, want: []string{"d9 1!", "d8 1!", "d7 1!", "d6 1!", "r4 2", "r3 2", "r2 2", "r1 2"}},
		"required, one plan":    {topology: gangplan.Topology{Required: "rack"}, plans: plans[2:3], want: []string{"d7 1!", "r3 2", "r0 2", "r1 2", "r2 2", "r4 2"}},
		"pods have ended":       {plans: plans, nominated: "n2", want: []string{"nominated 1!", "d9 1!", "d8 1!", "d7 1!", "d6 1!", "d5 1!", "d4 1!", "all 10"}},
		"nominated, but gone":   {plans: plans[:1], nominated: "gone", want: []string{"d9 1!", "all 10"}},
		"segments":              {topology: gangplan.Topology{SegmentSize: 2}, plans: plans[:2], want: []string{"d9 1!", "d8 1!"}},
		"no plan":               {want: []string{"all 10"}},
		"required, and no plan": {topology: gangplan.Topology{Required: "rack"}, want: []string{"r0 2", "r1 2", "r2 2", "r3 2", "r4 2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := member("a")
			pod.Status.NominatedNodeName = test.nominated
			list, err := (&Plugin{}).candidates(&group{waiting: []*v1.Pod{pod}}, &verdict{topology: test.topology, plans: test.plans}, parent)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range list {
				text := fmt.Sprintf("%s %d", c.placement.Name, len(c.placement.Nodes))
				if c.nodes != nil {
					text += "!"
				}
				if got = append(got, text); c.members != 1 {
					t.Errorf("%s has %d members, want 1", text, c.members)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the placements are %q, want %q", got, test.want)
			}
		})
	}
}
