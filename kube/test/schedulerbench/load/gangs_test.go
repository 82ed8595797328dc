package load

import (
	"maps"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestGangs(t *testing.T) {
	tests := map[string]struct {
		load      string
		nodes     int
		pods      int
		wantGangs int
		wantPods  int
		wantGPUs  int
		wantErr   bool
	}{
		"gangs":                              {load: "gangs", nodes: 500, wantGangs: 250, wantPods: 2000, wantGPUs: 2000},
		"gangs, so many":                     {load: "gangs", nodes: 10, pods: 80, wantGangs: 10, wantPods: 80, wantGPUs: 80},
		"gangs, one node":                    {load: "gangs", nodes: 1, wantGangs: 1, wantPods: 8, wantGPUs: 8},
		"gangs, more than there are GPUs":    {load: "gangs", nodes: 10, pods: 88, wantErr: true},
		"gangs, no whole gang":               {load: "gangs", nodes: 10, pods: 12, wantErr: true},
		"large gangs":                        {load: "gangs-large", nodes: 500, wantGangs: 16, wantPods: 2000, wantGPUs: 2000},
		"large gangs, few nodes":             {load: "gangs-large", nodes: 16, wantGangs: 1, wantPods: 125, wantGPUs: 125},
		"large gangs, too few nodes":         {load: "gangs-large", nodes: 15, wantErr: true},
		"impossible":                         {load: "impossible", nodes: 500, wantGangs: 1, wantPods: 10, wantGPUs: 80},
		"impossible, as few as can be":       {load: "impossible", nodes: 10, wantGangs: 1, wantPods: 10, wantGPUs: 80},
		"impossible, too few nodes":          {load: "impossible", nodes: 9, wantErr: true},
		"impossible, other pods":             {load: "impossible", nodes: 500, pods: 20, wantErr: true},
		"topology":                           {load: "topology", nodes: 500, wantGangs: 100, wantPods: 400, wantGPUs: 3200},
		"topology, a rack that is not whole": {load: "topology", nodes: 29, wantGangs: 4, wantPods: 16, wantGPUs: 128},
		"topology, less than a rack":         {load: "topology", nodes: 9, wantErr: true},
		"topology, more than fit":            {load: "topology", nodes: 20, pods: 20, wantErr: true},
		"topology, no whole gang":            {load: "topology", nodes: 20, pods: 6, wantErr: true},
		"beside others, equal":               {load: "beside-equal", nodes: 300, wantGangs: 1, wantPods: 256, wantGPUs: 256},
		"beside others, too few nodes":       {load: "beside-equal", nodes: 63, wantErr: true},
		"beside others, of kinds":            {load: "beside-kinds", nodes: 300, wantGangs: 1, wantPods: 256, wantGPUs: 256},
		"beside others, many":                {load: "beside-many", nodes: 300, wantGangs: 1, wantPods: 4096, wantGPUs: 1024},
		"beside others, in segments":         {load: "beside-segments", nodes: 300, wantGangs: 20, wantPods: 1280, wantGPUs: 1280},
		"beside others, few segments":        {load: "beside-segments", nodes: 30, pods: 128, wantGangs: 2, wantPods: 128, wantGPUs: 128},
		"beside others, no whole gang":       {load: "beside-segments", nodes: 300, pods: 65, wantErr: true},
		"beside others, unfit":               {load: "beside-unfit", nodes: 300, wantGangs: 1, wantPods: 256, wantGPUs: 2048},
		"beside others, unfit, so few fit":   {load: "beside-unfit", nodes: 400, wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			loads, err := Named([]string{tc.load})
			if err != nil {
				t.Fatal(err)
			}
			o, err := loads[0].Make(tc.nodes, tc.pods, 1)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			}
			if err != nil {
				return
			}
			if len(o.Gangs) != tc.wantGangs || len(o.Pods) != tc.wantPods || GPUs(o.Pods) != tc.wantGPUs || len(o.Nodes) != tc.nodes {
				t.Errorf("%d gangs of %d pods with %d GPUs on %d nodes, want %d, %d, %d and %d", len(o.Gangs), len(o.Pods), GPUs(o.Pods), len(o.Nodes),
					tc.wantGangs, tc.wantPods, tc.wantGPUs, tc.nodes)
			}
			sizes, want := map[string]int{}, map[string]int{}
			for _, p := range o.Pods {
				sizes[p.Gang]++
			}
			for _, g := range o.Gangs {
				want[g.Name] = g.Pods
			}
			if !maps.Equal(sizes, want) {
				t.Errorf("the pods are in gangs %v, want %v", sizes, want)
			}
			if got := o.NeedsTopology(); got != (tc.load == "topology") {
				t.Errorf("NeedsTopology = %v", got)
			}
		})
	}
}

// TestImpossibleLacksOneNode: with one more node the gang would fit, and the free GPUs alone do not tell that it does not.
func TestImpossibleLacksOneNode(t *testing.T) {
	for _, nodes := range []int{10, 11, 50, 500} {
		o, err := impossible(nodes, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		whole, free := 0, 0
		for _, n := range o.Nodes {
			left := n.GPUs - GPUs(n.Running)
			if free += left; left >= o.Pods[0].GPUs {
				whole++
			}
		}
		if whole != impossibleGang-1 {
			t.Errorf("%d nodes: %d have 8 GPUs free, want %d", nodes, whole, impossibleGang-1)
		}
		if nodes >= 50 && free < 2*GPUs(o.Pods) {
			t.Errorf("%d nodes: %d GPUs are free, want many more than %d", nodes, free, GPUs(o.Pods))
		}
	}
}

func TestPlaces(t *testing.T) {
	o, err := topology(500, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	// Nodes of each value of a label.
	for key, want := range map[string]struct{ values, nodes int }{
		ZoneLabel: {5, 100}, RackLabel: {50, 10}, CliqueLabel: {100, 5},
	} {
		values := map[string]int{}
		for _, n := range o.Nodes {
			values[n.Labels[key]]++
		}
		if len(values) != want.values {
			t.Errorf("%s has %d values, want %d", key, len(values), want.values)
		}
		for value, nodes := range values {
			if nodes != want.nodes || value == "" {
				t.Errorf("%d nodes have %s=%s, want %d", nodes, key, value, want.nodes)
			}
		}
	}
	first, last := o.Nodes[0].Labels, o.Nodes[9].Labels
	if first[RackLabel] != last[RackLabel] || first[CliqueLabel] == last[CliqueLabel] {
		t.Errorf("the first and the last node of a rack have %v and %v", first, last)
	}
}

// TestEachGangFitsAnywhere places each gang in a random rack that has enough free nodes, on any of them.
func TestEachGangFitsAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(rackNodes, 100).Draw(t, "nodes")
		o, err := topology(nodes, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		free := map[string]int{}
		for _, n := range o.Nodes {
			free[n.Labels[RackLabel]]++
		}
		for i, g := range o.Gangs {
			rack := ""
			for _, n := range random.Perm(nodes) {
				if name := o.Nodes[n].Labels[RackLabel]; free[name] >= g.Pods {
					rack = name
					break
				}
			}
			if rack == "" {
				t.Fatalf("gang %d of %d fits in no rack: free nodes %v", i, len(o.Gangs), free)
			}
			free[rack] -= g.Pods
		}
	})
}
