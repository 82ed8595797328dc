package load

import "fmt"

// What runs beside other pods.
const (
	// besideNodes is the number of nodes of these loads, unless the command line says how many.
	besideNodes = 300
	// kindsOfGang are the kinds of members of a gang of several, manyMembers the number of members of the largest one. Of these a quarter
	// has a GPU.
	kindsOfGang, manyMembers, perTrainer = 16, 4096, 4
	// segmentGangs gangs of segmentGang pods have their pods in segments of segmentSize within a rack.
	segmentGangs, segmentGang, segmentSize = 20, 64, 16
	wideGang                               = 256
)

// Beside is a pod beside the gangs.
func Beside() Pod { return withGPUs(1) }

// equalMembers returns a gang of pods of 1 GPU.
func equalMembers(nodes, pods int, _ uint64) (Objects, error) {
	return oneGang(nodes, pods, wideGang, func(int) Pod { return withGPUs(1) })
}

// ofKinds returns a gang of pods of 1 GPU with different numbers of cores.
func ofKinds(nodes, pods int, _ uint64) (Objects, error) {
	return oneGang(nodes, pods, wideGang, func(i int) Pod {
		p := withGPUs(1)
		p.Cores += i % kindsOfGang
		return p
	})
}

// members returns a large gang, of which few pods have a GPU.
func members(nodes, pods int, _ uint64) (Objects, error) {
	return oneGang(nodes, pods, manyMembers, func(i int) Pod {
		if i%perTrainer == 0 {
			return withGPUs(1)
		}
		return Pod{Cores: 1, MemoryGiB: 2}
	})
}

// oneGang returns one gang of so many pods, unless pods says how many.
func oneGang(nodes, pods, own int, pod func(int) Pod) (Objects, error) {
	if pods == 0 {
		pods = own
	}
	o := Objects{Gangs: []Gang{{Name: "gang-00000", Pods: pods}}}
	for i := range nodes {
		o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs, Labels: place(i)})
	}
	for i := range pods {
		p := pod(i)
		p.Gang = o.Gangs[0].Name
		o.Pods = append(o.Pods, p)
	}
	if gpus := GPUs(o.Pods); gpus > nodes*NodeGPUs/2 {
		return Objects{}, fmt.Errorf("%d GPUs of a gang on %d nodes of %d GPUs: want at most half of them, so that the other pods fit", gpus, nodes, NodeGPUs)
	}
	return o, nil
}

// inSegments returns gangs of which each segment has to be within a rack. A rack without other pods holds five segments.
func inSegments(nodes, pods int, _ uint64) (Objects, error) {
	count := segmentGangs
	if pods > 0 {
		count = pods / segmentGang
	}
	if pods%segmentGang != 0 || count*segmentGang > nodes/rackNodes*rackNodes*NodeGPUs*3/5 {
		return Objects{}, fmt.Errorf("%d pods in gangs of %d on %d nodes: want whole gangs, for at most three fifths of the GPUs", count*segmentGang, segmentGang, nodes)
	}
	var o Objects
	for i := range nodes {
		o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs, Labels: place(i)})
	}
	o.add(count, Gang{Pods: segmentGang, SegmentKey: RackLabel, SegmentSize: segmentSize}, withGPUs(1))
	return o, nil
}

// unfit returns a gang of pods of 8 GPUs of which a sixth finds no node: too many nodes run a pod of 1 GPU.
func unfit(nodes, pods int, _ uint64) (Objects, error) {
	if pods == 0 {
		pods = wideGang
	}
	var o Objects
	free := 0
	for i := range nodes {
		n := Node{GPUs: NodeGPUs, Labels: place(i)}
		if i%3 == 0 {
			n.Running = []Pod{withGPUs(1)}
		} else {
			free++
		}
		o.Nodes = append(o.Nodes, n)
	}
	if pods <= free {
		return Objects{}, fmt.Errorf("%d pods of %d GPUs fit on %d nodes: want more", pods, NodeGPUs, free)
	}
	o.add(1, Gang{Pods: pods}, withGPUs(NodeGPUs))
	return o, nil
}
