// Package load makes the pods of a benchmark: how many GPUs each asks for, and in which order they are created. It guarantees that the
// same seed gives the same pods, and that each pod fits on some node at its turn wherever the scheduler has put the pods before it, so
// that two schedulers bind the same pods. It works on plain values and must not import anything of Kubernetes.
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
	Cores, MemoryGiB int
}

// Load is a row of the table of loads.
type Load struct {
	// Name is the name on the command line.
	Name string
	// About says what the pods are, in a few words.
	About string
	// Make returns the pods for a number of nodes in the order in which they are created. With pods 0 they fill all GPUs. It fails
	// when so many pods need not fit.
	Make func(nodes, pods int, seed uint64) ([]Pod, error)
}

// Loads is the table of loads.
func Loads() []Load {
	return []Load{
		{Name: "single", About: "pods of 1 GPU", Make: single},
		{Name: "mixed", About: "pods of 1, 2, 4 and 8 GPUs in random order", Make: mixed},
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
