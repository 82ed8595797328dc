package gang

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// TestKey: questions with other contents have other keys, whatever their names and indexes are.
func TestKey(t *testing.T) {
	question := func() *fleet.Preemption {
		n := fleet.Empty("node-00", "H100", 8000, 8000, 2)
		n.FreeCPU, n.FreeMemory = 1, 1
		n.GPUs[0] = fleet.GPU{Resource: gpu, Unit: 250, Free: 250}
		return &fleet.Preemption{
			Node: &n, Victims: []fleet.Victim{{Pods: 1}, {Pods: 1}}, Held: []fleet.Held{{Victims: []int{0}, GPUs: 1}, {Victims: []int{1}, GPUs: 2}},
		}
	}
	e := &ending{nodes: nodeKeys{map[any]int{}}}
	same := question()
	same.Node.Name = "node-01"
	if e.key(question()) != e.key(same) {
		t.Error("the key has the name")
	}
	seen := map[string]string{e.key(question()): "no change"}
	for name, change := range map[string]func(p *fleet.Preemption, n *fleet.Node, g *fleet.GPU){
		"model":          func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.Model = "H200" },
		"CPU":            func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.CPU++ },
		"free CPU":       func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.FreeCPU++ },
		"memory":         func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.Memory++ },
		"free memory":    func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.FreeMemory++ },
		"links":          func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.Links = links(t, "X NV2", "NV2 X") },
		"spread":         func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.Spread = true },
		"GPUs":           func(_ *fleet.Preemption, n *fleet.Node, _ *fleet.GPU) { n.GPUs = n.GPUs[:1] },
		"free":           func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Free = 0 },
		"state":          func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.State = fleet.Degraded },
		"resource":       func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Resource = replica },
		"unit":           func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Unit = 500 },
		"size":           func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Size = 500 },
		"physical":       func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Physical = 1 },
		"switch":         func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Switch = 1 },
		"single":         func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Single = true },
		"bandwidth":      func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.Bandwidth = 1 },
		"host bandwidth": func(_ *fleet.Preemption, _ *fleet.Node, g *fleet.GPU) { g.HostBandwidth = 1 },
		"pods":           func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Victims[0].Pods = 2 },
		"violations":     func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Victims[0].Budgets = [][]int{{0}} },
		"victim's CPU":   func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Victims[0].CPU = 1 },
		"victim's MiB":   func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Victims[0].Memory = 1 },
		"victims":        func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Held[0].Victims = []int{0, 1} },
		"held GPUs":      func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Held[0].GPUs = 3 },
		"amount":         func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Held[0].Amount = 500 },
		"traffic":        func(p *fleet.Preemption, _ *fleet.Node, _ *fleet.GPU) { p.Held[0].Traffic = fleet.Bandwidth },
	} {
		p := question()
		change(p, p.Node, &p.Node.GPUs[0])
		key := e.key(p)
		if other, double := seen[key]; double {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[key] = name
	}
}
