package load

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMake(t *testing.T) {
	tests := map[string]struct {
		load     string
		nodes    int
		pods     int
		wantPods int
		wantGPUs int
		wantErr  bool
	}{
		"single, all GPUs":                    {load: "single", nodes: 500, wantPods: 4000, wantGPUs: 4000},
		"single, some":                        {load: "single", nodes: 50, pods: 200, wantPods: 200, wantGPUs: 200},
		"single, more than there are GPUs":    {load: "single", nodes: 50, pods: 401, wantErr: true},
		"mixed, more than pods fit":           {load: "mixed", nodes: 5, pods: 600, wantErr: true},
		"mixed, large: other pods beside":     {load: "mixed", nodes: 5000, pods: 50000, wantPods: 50000, wantGPUs: (5000 - 485) * NodeGPUs},
		"mixed, few nodes: other pods beside": {load: "mixed", nodes: 5, pods: 300, wantPods: 300, wantGPUs: 3 * NodeGPUs},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			loads, err := Named([]string{tc.load})
			if err != nil {
				t.Fatal(err)
			}
			made, err := loads[0].Make(tc.nodes, tc.pods, 1)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			}
			if pods := made.Pods; len(pods) != tc.wantPods || GPUs(pods) != tc.wantGPUs {
				t.Errorf("%d pods with %d GPUs, want %d with %d", len(pods), GPUs(pods), tc.wantPods, tc.wantGPUs)
			}
			if err == nil && (len(made.Nodes) != tc.nodes || len(made.Gangs) != 0) {
				t.Errorf("%d nodes and %d gangs, want %d and none", len(made.Nodes), len(made.Gangs), tc.nodes)
			}
		})
	}
}

func TestMixedHasAllSizesAndFollowsTheSeed(t *testing.T) {
	make := func(seed uint64) []Pod {
		pods, err := mixed(500, 0, seed)
		if err != nil {
			t.Fatal(err)
		}
		return pods
	}
	counts := map[int]int{}
	for _, p := range make(1) {
		counts[p.GPUs]++
	}
	for _, size := range []int{1, 2, 4, 8} {
		if counts[size] < 20 {
			t.Errorf("%d pods of %d GPUs among %v, want at least 20", counts[size], size, counts)
		}
	}
	if got := GPUs(make(1)); got != 4000 {
		t.Errorf("%d GPUs, want 4000", got)
	}
	if !slices.Equal(make(1), make(1)) || slices.Equal(make(1), make(2)) {
		t.Error("the pods do not follow from the seed")
	}
}

func TestNamedRefusesUnknown(t *testing.T) {
	if _, err := Named([]string{"single", "double"}); err == nil {
		t.Error("no error, want one")
	}
}

// node is a node of the simple twin of a scheduler.
type node struct {
	gpus   int
	pods   int
	cores  int
	memory int
}

func (n node) fits(p Pod) bool {
	return n.gpus >= p.GPUs && n.pods >= 1 && n.cores >= p.Cores && n.memory >= p.MemoryGiB
}

// TestEachPodFitsAnywhere places the pods as badly as may be: by a random preference for full nodes, empty nodes or any.
func TestEachPodFitsAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 30).Draw(t, "nodes")
		pods, err := mixed(count, rapid.IntRange(0, count*(otherPods+1)-1).Draw(t, "pods"), rapid.Uint64().Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		prefer := rapid.SampledFrom([]string{"full", "empty", "any", "crowded"}).Draw(t, "prefer")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		nodes := slices.Repeat([]node{{gpus: NodeGPUs, pods: NodePods, cores: NodeCores, memory: NodeMemoryGiB}}, count)
		for i, p := range pods {
			at := choose(nodes, p, prefer, random)
			if at < 0 {
				t.Fatalf("pod %d of %d (%+v) fits nowhere: %+v", i, len(pods), p, nodes)
			}
			n := &nodes[at]
			*n = node{gpus: n.gpus - p.GPUs, pods: n.pods - 1, cores: n.cores - p.Cores, memory: n.memory - p.MemoryGiB}
		}
	})
}

// choose returns the node that a policy prefers among those on which the pod fits; -1 when there is none.
func choose(nodes []node, p Pod, prefer string, random *rand.Rand) int {
	best, bestRank := -1, 0
	for _, i := range random.Perm(len(nodes)) {
		rank := 0
		switch prefer {
		case "full":
			rank = -nodes[i].gpus
		case "empty":
			rank = nodes[i].gpus
		case "crowded":
			rank = -nodes[i].pods
		}
		if nodes[i].fits(p) && (best < 0 || rank > bestRank) {
			best, bestRank = i, rank
		}
	}
	return best
}
