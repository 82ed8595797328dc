package gang

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// ofKinds returns a gang of members of several kinds, which differ in CPU.
func ofKinds(members, kinds int, gpus int32) *Gang {
	g := &Gang{Min: members, Required: Anywhere, Preferred: 2}
	for k := range kinds {
		s := ofGPUs(gpus)
		s.CPU += int64(k) * 100
		g.Classes = append(g.Classes, Class{Requests: []fleet.Shape{s}})
	}
	for i := range members {
		g.Members = append(g.Members, Member{Class: i % kinds, Node: Unbound})
	}
	return g
}

// BenchmarkLoads measures plans of large gangs on 300 nodes of 8 GPUs in racks of 8.
func BenchmarkLoads(b *testing.B) {
	inSegments := alike(64, 1)
	inSegments.Segment = Segment{Size: 16, Level: 1}
	trainersAndWorkers := ofKinds(4096, 2, 1)
	trainersAndWorkers.Classes[1].Requests = []fleet.Shape{{CPU: 1000, Memory: 1 << 10}}
	for name, g := range map[string]*Gang{
		"256":                   alike(256, 1),
		"256 of 16 kinds":       ofKinds(256, 16, 1),
		"4096 of 2 kinds":       trainersAndWorkers,
		"64 in segments":        inSegments,
		"256 do not fit":        alike(256, 8),
		"4096, CPU only":        {Classes: []Class{{Requests: []fleet.Shape{{CPU: 1000, Memory: 1 << 10}}}}, Members: make([]Member, 4096), Min: 4096, Required: Anywhere, Preferred: 2},
		"256 of 16, do not fit": ofKinds(256, 16, 8),
	} {
		for i := range g.Members {
			g.Members[i].Node = Unbound
		}
		b.Run(name, func(b *testing.B) {
			used := nodes(300)
			if name == "256 do not fit" || name == "256 of 16, do not fit" {
				for i := range used {
					if i%4 == 0 {
						used[i].GPUs[0].Free = 0
					}
				}
			}
			p, topology := newPlanner(b, used, 8)
			for b.Loop() {
				p.rows, p.byContent = map[string]*row{}, newByContent()
				_, _, err := p.Plan(topology, g)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
