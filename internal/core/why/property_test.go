package why

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

const gpuName, slice = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"

// drawInput draws a small cluster in which all kinds of obstacles occur.
func drawInput(t *rapid.T) Input {
	var in Input
	count := rapid.IntRange(1, 2).Draw(t, "nodes")
	for i := range count {
		drawNode(t, &in, fmt.Sprintf("n%d", i))
	}
	shape := fleet.Shape{CPU: 1000 * rapid.Int64Range(0, 5).Draw(t, "cpu"), Memory: 100 * rapid.Int64Range(0, 5).Draw(t, "memory")}
	switch rapid.IntRange(0, 5).Draw(t, "request") {
	case 0:
	case 1:
		shape.Resource, shape.GPUs = slice, rapid.Int32Range(1, 3).Draw(t, "slices")
	default:
		shape.Resource, shape.GPUs = gpuName, rapid.Int32Range(1, 4).Draw(t, "gpus")
	}
	if shape.GPUs > 0 && rapid.IntRange(0, 3).Draw(t, "model") == 0 {
		shape.Models = fleet.Models("A")
	}
	in.Pod.Name, in.Pod.Requests = "ml/waits", []fleet.Shape{shape}
	if shape.Resource == slice && rapid.Bool().Draw(t, "two") {
		in.Pod.Requests = append(in.Pod.Requests, fleet.Shape{Resource: slice, GPUs: 1, Models: shape.Models})
	}
	in.Pod.Others = map[string]int64{pods: 1}
	if rapid.IntRange(0, 4).Draw(t, "nic") == 0 {
		in.Pod.Others["rdma/hca"] = 1
	}
	return in
}

func drawNode(t *rapid.T, in *Input, name string) {
	n := Node{Node: fleet.Empty(name, rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"), 6000, 600, 0), Kind: "kind"}
	for k := range rapid.IntRange(0, 3).Draw(t, "gpus") {
		g := fleet.GPU{Resource: gpuName, Unit: fleet.Whole, Free: fleet.Whole, Physical: uint8(k)}
		if rapid.IntRange(0, 4).Draw(t, "mig") == 0 {
			g.Resource, g.Unit, g.Size, g.Free = slice, 250, 500, 500
		}
		if rapid.IntRange(0, 4).Draw(t, "bad") == 0 {
			g.State = rapid.SampledFrom([]fleet.State{fleet.Degraded, fleet.Draining, fleet.Gone}).Draw(t, "state")
		}
		n.GPUs = append(n.GPUs, g)
	}
	n.Others = map[string]Other{pods: {All: 4, Free: 4}}
	if rapid.Bool().Draw(t, "nics") {
		n.Others["rdma/hca"] = Other{All: 1, Free: 1}
	}
	for range rapid.IntRange(0, 3).Draw(t, "pods") {
		drawHolder(t, in, &n)
	}
	for _, b := range []Block{{Code: Taint, Key: "a=b:NoSchedule"}, {Code: Cordoned}, {Code: Selector, Key: "disk=ssd"}, {Code: NotValidated}, {Code: ClaimRule, Key: "x"}} {
		if rapid.IntRange(0, 9).Draw(t, "block") == 0 {
			n.Blocks = append(n.Blocks, b)
		}
	}
	in.Nodes = append(in.Nodes, n)
}

// drawHolder puts a pod on a node.
func drawHolder(t *rapid.T, in *Input, n *Node) {
	h := Holder{
		Name: fmt.Sprintf("ml/p%d", len(in.Holders)), Node: n.Name, CPU: min(n.FreeCPU, 1000*rapid.Int64Range(0, 3).Draw(t, "cpu")),
		Memory: min(n.FreeMemory, 100*rapid.Int64Range(0, 3).Draw(t, "memory")), Others: map[string]int64{pods: 1},
		Priority: rapid.Int32Range(0, 2).Draw(t, "priority"), Since: rapid.Int64Range(1, 3).Draw(t, "since"), Ending: rapid.IntRange(0, 5).Draw(t, "ending") == 0,
		Permanent: rapid.IntRange(0, 7).Draw(t, "permanent") == 0,
	}
	if n.Others["rdma/hca"].Free > 0 && rapid.Bool().Draw(t, "nic") {
		h.Others["rdma/hca"] = 1
		n.Others["rdma/hca"] = Other{1, 0}
	}
	n.Others[pods] = Other{4, n.Others[pods].Free - 1}
	n.FreeCPU -= h.CPU
	n.FreeMemory -= h.Memory
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Free >= g.Unit && rapid.Bool().Draw(t, "takes") {
			g.Free -= g.Unit
			h.Devices = append(h.Devices, Devices{i, 1})
		}
	}
	in.Holders = append(in.Holders, h)
}

// atoms lists all single changes that can matter, without the search.
func atoms(in *Input) []Act {
	var list []Act
	add := func(a Act) {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	for i := range in.Holders {
		if h := &in.Holders[i]; !h.Permanent {
			add(Act{Kind: EndPod, Pod: h.Name, Node: h.Node, Ending: h.Ending, Priority: h.Priority})
		}
	}
	w := newWorld(in)
	cpu, memory := w.plain()
	for i := range in.Nodes {
		n := &in.Nodes[i]
		for k := range n.Blocks {
			if a, ok := blockAct(n, &n.Blocks[k]); ok {
				add(a)
			}
		}
		add(Act{Kind: AcceptModel, Key: n.Model})
		for k := range n.GPUs {
			if n.GPUs[k].State > fleet.Degraded {
				add(Act{Kind: RepairGPU, Node: n.Name, GPU: k, Key: n.GPUs[k].Resource})
			}
		}
	}
	if cpu > 0 {
		add(Act{Kind: RequestCPU, Count: 1, Was: cpu})
	}
	if memory > 0 {
		add(Act{Kind: RequestMemory, Count: 1, Was: memory})
	}
	for i := range in.Nodes {
		add(Act{Kind: AddNode, Node: in.Nodes[i].Name, Key: in.Nodes[i].Kind})
	}
	if d := w.demands(); len(d) == 1 {
		// With the least that can be requested it fits wherever it does with more.
		add(Act{Kind: RequestGPUs, Count: 1, Was: d[0].want, Key: d[0].resource})
	}
	return list
}

// lightest returns the smallest weight of a set of changes with which the pod fits somewhere, by trying all sets; -1 when there is none.
func lightest(w *world, all []Act) int {
	best := -1
	var grow func(set []Act, from, weight int)
	grow = func(set []Act, from, weight int) {
		if best >= 0 && weight >= best {
			return
		}
		next := w.with(set)
		for i := range next.nodes {
			if next.fits(&next.nodes[i]) {
				best = weight
				return
			}
		}
		for i := from; i < len(all); i++ {
			grow(append(slices.Clone(set), all[i]), i+1, weight+all[i].weight())
		}
	}
	grow(nil, 0, 0)
	return best
}

// TestSmallestChange compares the proposals with all sets of changes: the first one has the smallest weight, each one makes the pod fit,
// and there is none only when no set helps.
func TestSmallestChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		w := newWorld(&in)
		answer := Explain(in)
		if len(answer.Fitting) > 0 {
			if lightest(w, nil) != 0 {
				t.Fatalf("fits on %v, which the twin does not confirm", answer.Fitting)
			}
			return
		}
		got, want := -1, lightest(w, atoms(&in))
		if want < 0 {
			want = (&Act{Kind: NewNode}).weight() // The last resort, which the twin does not try.
		}
		if len(answer.Changes) > 0 {
			got = answer.Changes[0].Weight
		}
		if got != want {
			t.Fatalf("the smallest change weighs %d, want %d: %+v", got, want, answer)
		}
		for i := range answer.Changes {
			if !w.verified(&answer.Changes[i]) {
				t.Fatalf("with %+v it does not fit", answer.Changes[i])
			}
		}
		if answer.Code == "" || answer.Sentence == "" {
			t.Fatalf("no reason: %+v", answer)
		}
	})
}

// TestOrderDoesNotMatter checks that the order of nodes and holders changes nothing.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want := fmt.Sprintf("%+v", Explain(in))
		slices.Reverse(in.Nodes)
		slices.Reverse(in.Holders)
		if got := fmt.Sprintf("%+v", Explain(in)); got != want {
			t.Fatalf("%s\nwant %s", got, want)
		}
	})
}

// TestObstaclesAndFits checks that a node has no obstacle exactly when the pod fits there.
func TestObstaclesAndFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		w := newWorld(&in)
		for i := range w.nodes {
			n := &w.nodes[i]
			if obstacles := w.obstacles(n); (len(obstacles) == 0) != w.fits(n) {
				t.Fatalf("fits: %v, obstacles: %+v", w.fits(n), obstacles)
			}
		}
	})
}
