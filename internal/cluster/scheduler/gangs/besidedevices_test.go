package gangs

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// perNode is a driver with a number of devices on each node, of which each pod gets one. While it is busy, another trial is under way.
type perNode struct {
	devices int
	busy    bool
	tries   int
}

func (d *perNode) Served(v1.ResourceName) bool { return false }
func (d *perNode) Needs(*v1.Pod) bool          { return true }
func (d *perNode) Try(wait bool) gangplanner.Trial {
	if d.busy && !wait {
		return nil
	}
	return &perNodeTrial{perNode: d}
}

type perNodeTrial struct {
	*perNode
	placed []string
}

func (t *perNodeTrial) Place(_ *v1.Pod, node fwk.NodeInfo) string {
	t.tries++
	used := 0
	for _, name := range t.placed {
		if name == node.Node().Name {
			used++
		}
	}
	if used == t.devices {
		return "no device is free"
	}
	t.placed = append(t.placed, node.Node().Name)
	return ""
}
func (t *perNodeTrial) Mark() int     { return len(t.placed) }
func (t *perNodeTrial) Undo(mark int) { t.placed = t.placed[:mark] }
func (t *perNodeTrial) End()          {}

// TestBesideDevices: a gang whose members get devices of a driver is planned beside the cycles where it takes more than a cycle may, or
// where the driver is asked about another gang. Its plan is used while the places are free.
func TestBesideDevices(t *testing.T) {
	const size = 3
	tests := map[string]struct {
		limits  Limits
		devices perNode
		between func(*scene, *perNode)
		// want is what the first member gets from its first cycle, and then; "n" is a node.
		want string
		then string
	}{
		"in the cycle":         {Limits{}, perNode{devices: 1}, nil, "n", ""},
		"more than a cycle":    {Limits{CycleSteps: 1}, perNode{devices: 1}, nil, "is being planned: 3 members", "n"},
		"two tries in a cycle": {Limits{CycleSteps: 2 << 15}, perNode{devices: 1}, nil, "is being planned: 3 members", "n"},
		"another trial":        {Limits{}, perNode{devices: 1, busy: true}, nil, "is being planned: 3 members", "n"},
		"a place is taken": {Limits{CycleSteps: 1}, perNode{devices: 1}, func(s *scene, _ *perNode) { s.other(0, 4) },
			"is being planned: 3 members", "is planned again, since 1 of its 3 places were taken"},
		"a node is deleted": {Limits{CycleSteps: 1}, perNode{devices: 1}, func(s *scene, _ *perNode) { s.nodes = s.nodes[1:] },
			"is being planned: 3 members", "is planned again, since 1 of its 3 places were taken"},
		"no device": {Limits{CycleSteps: 1}, perNode{}, nil, "is being planned: 3 members", "waits as a whole"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, size, 4, tc.limits)
			s.plugin.planner.Devices = &tc.devices
			for i := range size {
				s.set(sized("train", i, size, 1))
			}
			first := sized("train", 0, size, 1)
			check := func(want string) {
				t.Helper()
				if text := s.cycle(first); want == "n" && !strings.HasPrefix(text, "n") || !strings.Contains(text, want) {
					t.Fatalf("the first member gets %q; want %q", text, want)
				}
			}
			check(tc.want)
			if tc.then != "" {
				s.work()
				if tc.between != nil {
					tc.between(s, &tc.devices)
				}
				check(tc.then)
			}
			if s.of(first).plan == nil {
				return
			}
			used := map[string]int{}
			for _, node := range s.of(first).plan.nodes {
				if used[node]++; used[node] > tc.devices.devices {
					t.Errorf("%s has %d members and %d devices", node, used[node], tc.devices.devices)
				}
			}
		})
	}
}

// TestBesideStopped: the planning of a gang that has gone asks the driver about no further member.
func TestBesideStopped(t *testing.T) {
	devices := &perNode{}
	s := newScene(t, 30, 4, Limits{CycleSteps: 1})
	s.plugin.planner.Devices = devices
	for i := range 20 {
		s.set(sized("train", i, 20, 1))
	}
	s.cycle(sized("train", 0, 20, 1))
	for i := range 20 {
		s.remove(sized("train", i, 20, 1))
	}
	if s.work(); devices.tries > 0 {
		t.Errorf("%d members were tried on nodes", devices.tries)
	}
}

// TestRefusedBeside: what becomes free while a gang is planned beside the cycles, and refused, is not lost: the gang is planned again.
func TestRefusedBeside(t *testing.T) {
	s := newScene(t, 1, 4, Limits{CycleSteps: 1})
	s.other(0, 4)
	s.set(sized("train", 0, 1, 2))
	first := sized("train", 0, 1, 2)
	s.cycle(first)
	s.work()
	s.nodes[0].pods = nil
	s.touch(s.nodes[0])
	if text := s.cycle(first); !strings.Contains(text, "waits as a whole") {
		t.Fatal(text)
	}
	s.clock.Step(s.limits.Repeat)
	again, _ := s.overdue()
	for _, out := range again {
		for _, pod := range out.pods {
			if pod.Name == first.Name {
				return
			}
		}
	}
	t.Errorf("it is not brought back: %v", again)
}
