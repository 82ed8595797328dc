// Package load makes what a benchmark puts into a cluster: its nodes, and its pods in the order in which they are created, with the gangs
// that they belong to. It guarantees that the same seed gives the same pods, and that each pod and each gang fits at its turn wherever the
// scheduler has put those before it, so that two schedulers bind the same pods; the load "impossible" is the exception. It works on plain
// values and must not import anything of Kubernetes.
package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// What a node has, and what a pod asks for. None but GPUs and the number of pods can be exhausted: the pods of a full node ask for 134
// cores and 332 GiB at most.
const (
	// NodeGPUs is the number of GPUs of a node.
	NodeGPUs = 8
	// NodePods is the largest number of pods of a node.
	NodePods = 110
	// NodeCores and NodeMemoryGiB are a node's.
	NodeCores, NodeMemoryGiB = 192, 2048
	// coresPerGPU and memoryPerGPU, in GiB, are those of a pod with GPUs.
	coresPerGPU, memoryPerGPU = 4, 16
	// otherPods is the number of pods without GPUs that leaves each GPU of a node usable.
	otherPods = NodePods - NodeGPUs
)

// Pod is what a pod asks for.
type Pod struct {
	// GPUs is 0 for a pod that asks for cores and memory only.
	GPUs int
	// Cores and MemoryGiB are in whole cores and GiB.
	Cores     int
	MemoryGiB int
	// Gang is the name of its gang; empty: it has none.
	Gang string
}

// Node is a node with GPUs.
type Node struct {
	// GPUs is how many it has.
	GPUs int
	// Labels say where it is, with the keys RackLabel, CliqueLabel and ZoneLabel. Many nodes have none.
	Labels map[string]string
	// Running are the pods that run on it from the beginning.
	Running []Pod
}

// Objects are what a load puts into a cluster.
type Objects struct {
	Nodes []Node
	// Pods are to be scheduled, in the order in which they are created.
	Pods []Pod
	// Gangs are those of the pods.
	Gangs []Gang
}

// Load is a row of the table of loads.
type Load struct {
	// Name is the name on the command line.
	Name string
	// About says what the pods are, in a few words.
	About string
	// Make returns the objects for a number of nodes. With pods 0 there are as many as the load has by itself. It fails when so many pods
	// need not fit, and when the load cannot have so many.
	Make func(nodes, pods int, seed uint64) (Objects, error)
	// Rounds is how often each scheduler runs with the load, unless the command line says how often.
	Rounds int
	// Impossible is a load that no scheduler can bind. Its pods are created when the scheduler is ready, and what is measured is the time
	// until all of them are refused.
	Impossible bool
	// Beside is how many pods of 1 GPU without a gang are created in a second beside the others, while the scheduler runs; 0 is none.
	// What is measured is how long each of them waits for its node.
	Beside int
	// Nodes is the number of nodes, unless the command line says how many; 0 leaves it to that.
	Nodes int
	// Bars are what berth-scheduler has to reach.
	Bars Bars
}

// Bars are the bars of a load. A bar of 0 is none: the values are printed and not judged.
type Bars struct {
	// LeastSpeed is the least ratio of ours to stock, in pods per second. Stock schedules gangs with Kubernetes' own gang scheduling.
	LeastSpeed float64
	// MostSeconds is the longest time of ours, in the median, from the creation of the last pod until all are refused.
	MostSeconds float64
	// MostWait is the longest time in seconds, in the median of the runs, that 99 of 100 pods beside gangs wait for their node.
	MostWait float64
}

// Loads is the table of loads.
func Loads() []Load {
	return []Load{
		{Name: "single", About: "pods of 1 GPU", Make: onFreeNodes(single), Rounds: 3, Bars: Bars{LeastSpeed: 0.95}},
		{Name: "mixed", About: "pods of 1, 2, 4 and 8 GPUs in random order", Make: onFreeNodes(mixed), Rounds: 3, Bars: Bars{LeastSpeed: 0.95}},
		{Name: "gangs", About: "gangs of 8 pods of 1 GPU", Make: gangs, Rounds: 3, Bars: Bars{LeastSpeed: 1.5}},
		{Name: "gangs-large", About: "gangs of 125 pods of 1 GPU", Make: gangsLarge, Rounds: 1},
		{Name: "impossible", About: "a gang of 10 pods of 8 GPUs, which 9 nodes have free", Make: impossible, Rounds: 1, Impossible: true},
		{Name: "topology", About: "gangs of 4 pods of 8 GPUs, each within a rack", Make: topology, Rounds: 1},
		beside("beside-equal", "a gang of 256 pods of 1 GPU", equalMembers),
		beside("beside-kinds", "a gang of 256 pods of 1 GPU, of 16 kinds", ofKinds),
		beside("beside-many", "a gang of 4,096 pods, of which 1,024 have 1 GPU", members),
		beside("beside-segments", "20 gangs of 64 pods of 1 GPU, in segments of 16 within a rack", inSegments),
		beside("beside-unfit", "a gang of 256 pods of 8 GPUs, which 200 nodes have free", unfit),
	}
}

// beside returns a load with other pods beside its gangs.
func beside(name, about string, make func(nodes, pods int, seed uint64) (Objects, error)) Load {
	return Load{
		Name: name, About: about + ", beside 10 pods of 1 GPU a second", Make: make, Rounds: 1, Impossible: name == "beside-unfit", Beside: 10, Nodes: besideNodes,
		Bars: Bars{MostWait: 0.2},
	}
}

// Named returns the loads with these names, in their order.
func Named(names []string) ([]Load, error) {
	var known []string
	for _, l := range Loads() {
		known = append(known, l.Name)
	}
	var loads []Load
	for _, name := range names {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("unknown load %q: the loads are %q", name, known)
		}
		loads = append(loads, Loads()[i])
	}
	return loads, nil
}

// GPUs returns the sum of the GPUs of the pods.
func GPUs(pods []Pod) int {
	sum := 0
	for _, p := range pods {
		sum += p.GPUs
	}
	return sum
}

// onFreeNodes returns the objects of pods alone, on nodes that are alike and run nothing.
func onFreeNodes(make func(nodes, pods int, seed uint64) ([]Pod, error)) func(nodes, pods int, seed uint64) (Objects, error) {
	return func(nodes, pods int, seed uint64) (Objects, error) {
		made, err := make(nodes, pods, seed)
		return Objects{Nodes: freeNodes(nodes), Pods: made}, err
	}
}

func freeNodes(nodes int) []Node { return slices.Repeat([]Node{{GPUs: NodeGPUs}}, nodes) }

func withGPUs(gpus int) Pod {
	return Pod{GPUs: gpus, Cores: coresPerGPU * gpus, MemoryGiB: memoryPerGPU * gpus}
}

// single returns pods of 1 GPU.
func single(nodes, pods int, _ uint64) ([]Pod, error) {
	if pods == 0 {
		pods = nodes * NodeGPUs
	}
	if pods > nodes*NodeGPUs {
		return nil, fmt.Errorf("%d pods of 1 GPU do not fit on %d nodes of %d GPUs: want at most %d", pods, nodes, NodeGPUs, nodes*NodeGPUs)
	}
	return slices.Repeat([]Pod{withGPUs(1)}, pods), nil
}

// mixed returns pods of 1 to 8 GPUs. When there are more pods than GPUs can be filled with, the others have no GPU, at random places.
func mixed(nodes, pods int, seed uint64) ([]Pod, error) {
	random := rand.New(rand.NewPCG(seed, 0))
	filled := fill(nodes, random)
	if pods == 0 {
		return filled, nil
	}
	if pods <= len(filled) {
		return filled[:pods], nil
	}
	// No more nodes than these can have so many pods without GPUs that a GPU is out of reach.
	crowded := pods / (otherPods + 1)
	if crowded >= nodes {
		return nil, fmt.Errorf("%d pods need not fit on %d nodes of %d pods: want at most %d", pods, nodes, NodePods, nodes*(otherPods+1)-1)
	}
	filled = fill(nodes-crowded, random)
	other := pods - len(filled)
	if other < 0 {
		return filled[:pods], nil
	}
	all := make([]Pod, 0, pods)
	for left := len(filled); left+other > 0; {
		if random.IntN(left+other) < other {
			all, other = append(all, Pod{Cores: 1, MemoryGiB: 2}), other-1
		} else {
			all, left = append(all, filled[len(filled)-left]), left-1
		}
	}
	return all, nil
}

// fill draws sizes at random until all GPUs are used. A size is drawn while it fits on some node wherever the pods so far are: a node
// that has not got size GPUs free has more than 8-size in use, so that with fewer than nodes x (9-size) GPUs in use some node has
// them.
func fill(nodes int, random *rand.Rand) []Pod {
	var pods []Pod
	for used := 0; used < nodes*NodeGPUs; {
		sizes := []int{1, 2, 4, 8}
		for used >= nodes*(NodeGPUs+1-sizes[len(sizes)-1]) {
			sizes = sizes[:len(sizes)-1]
		}
		size := sizes[random.IntN(len(sizes))]
		pods, used = append(pods, withGPUs(size)), used+size
	}
	return pods
}
