package load

import "fmt"

// Keys of the labels of nodes that say where they are.
const (
	// ZoneLabel is the key of the zone, a part of the data centre.
	ZoneLabel = "topology.kubernetes.io/zone"
	// RackLabel is the key of the rack.
	RackLabel = "topology.kubernetes.io/rack"
	// CliqueLabel is the key of the clique: the nodes whose GPUs one NVLink fabric connects.
	CliqueLabel = "nvidia.com/gpu.clique"
)

// The nodes with labels: two cliques in a rack, ten racks in a zone.
const (
	rackNodes   = 10
	cliqueNodes = 5
	zoneNodes   = 100
)

// What the gangs are.
const (
	// smallGang and largeGang are numbers of pods of 1 GPU.
	smallGang, largeGang = 8, 125
	// nodesPerLargeGang is the number of nodes for a large gang, so that 500 nodes get 16 of them.
	nodesPerLargeGang = 31
	// rackGang is the number of pods of a gang that has to be within a rack. Each pod takes a whole node.
	rackGang = 4
	// impossibleGang is the number of pods of the gang that does not fit, each of which takes a whole node.
	impossibleGang = 10
)

// Gang is pods of which all are bound, or none.
type Gang struct {
	Name string
	// Pods is the number of its pods.
	Pods int
	// TopologyKey is the key of a label that has to have one value on all nodes of the gang's pods; empty: there is no such label.
	TopologyKey string
	// SegmentKey is the key of a label that has to have one value on the nodes of each SegmentSize pods; empty: there is none.
	// Kubernetes' own gang scheduling does not know segments.
	SegmentKey  string
	SegmentSize int
}

// gangs returns gangs of 8 pods. By themselves they take half of the GPUs.
func gangs(nodes, pods int, _ uint64) (Objects, error) {
	return gangsOf(nodes, pods, smallGang, nodes*NodeGPUs/2/smallGang)
}

// gangsLarge returns gangs of 125 pods. By themselves they take half of the GPUs.
func gangsLarge(nodes, pods int, _ uint64) (Objects, error) {
	return gangsOf(nodes, pods, largeGang, nodes/nodesPerLargeGang)
}

// gangsOf returns gangs of so many pods of 1 GPU, count of them unless pods says how many.
func gangsOf(nodes, pods, size, count int) (Objects, error) {
	if pods%size != 0 {
		return Objects{}, fmt.Errorf("%d pods are no whole gangs of %d pods", pods, size)
	}
	if pods == 0 {
		pods = max(1, count) * size
	}
	if pods > nodes*NodeGPUs {
		return Objects{}, fmt.Errorf("%d pods of 1 GPU in gangs of %d do not fit on %d nodes of %d GPUs", pods, size, nodes, NodeGPUs)
	}
	o := Objects{Nodes: freeNodes(nodes)}
	o.add(pods/size, Gang{Pods: size}, withGPUs(1))
	return o, nil
}

// topology returns gangs that have to be within a rack. A rack holds two of them, whatever other gangs are there, so that two gangs per
// rack always fit.
func topology(nodes, pods int, _ uint64) (Objects, error) {
	most := nodes / rackNodes * (rackNodes / rackGang) * rackGang
	if pods == 0 {
		pods = most
	}
	if pods%rackGang != 0 {
		return Objects{}, fmt.Errorf("%d pods are no whole gangs of %d pods", pods, rackGang)
	}
	if pods == 0 || pods > most {
		return Objects{}, fmt.Errorf("%d pods of %d GPUs in gangs of %d need not fit on %d nodes in racks of %d: want %d to %d pods", pods, NodeGPUs,
			rackGang, nodes, rackNodes, rackGang, most)
	}
	var o Objects
	for i := range nodes {
		o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs, Labels: place(i)})
	}
	o.add(pods/rackGang, Gang{Pods: rackGang, TopologyKey: RackLabel}, withGPUs(NodeGPUs))
	return o, nil
}

// place returns the labels of a node: which racks, cliques and zones there are follows from the order of the nodes.
func place(node int) map[string]string {
	rack, clique := node/rackNodes, node%rackNodes/cliqueNodes
	return map[string]string{
		ZoneLabel: fmt.Sprintf("zone-%d", node/zoneNodes),
		RackLabel: fmt.Sprintf("rack-%03d", rack),
		// The UUID of the fabric's cluster and the number of the clique, as feature discovery writes them.
		CliqueLabel: fmt.Sprintf("00000000-0000-4000-8000-%012d.%d", rack, clique),
	}
}

// impossible returns one gang, for which one node is missing. The others are full, have a pod of 1 GPU, or have 4 GPUs in all, so that
// many more GPUs are free than the gang asks for.
func impossible(nodes, pods int, _ uint64) (Objects, error) {
	if pods != 0 && pods != impossibleGang {
		return Objects{}, fmt.Errorf("%d pods: the gang that does not fit has %d", pods, impossibleGang)
	}
	if nodes < impossibleGang {
		return Objects{}, fmt.Errorf("%d nodes: the gang that does not fit needs at least %d", nodes, impossibleGang)
	}
	var o Objects
	// The nodes that are free lie between the others.
	step := nodes / (impossibleGang - 1)
	for i := range nodes {
		switch {
		case i%step == 0 && i/step < impossibleGang-1:
			o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs})
		case i%3 == 0:
			o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs, Running: []Pod{withGPUs(NodeGPUs)}})
		case i%3 == 1:
			o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs, Running: []Pod{withGPUs(1)}})
		default:
			o.Nodes = append(o.Nodes, Node{GPUs: NodeGPUs / 2})
		}
	}
	o.add(1, Gang{Pods: impossibleGang}, withGPUs(NodeGPUs))
	return o, nil
}

// add adds gangs with their pods, which follow one another.
func (o *Objects) add(count int, gang Gang, pod Pod) {
	for i := range count {
		gang.Name = fmt.Sprintf("gang-%05d", i)
		pod.Gang = gang.Name
		o.Gangs = append(o.Gangs, gang)
		for range gang.Pods {
			o.Pods = append(o.Pods, pod)
		}
	}
}

// NeedsTopology tells whether a gang has to be within a part of the cluster.
func (o Objects) NeedsTopology() bool {
	for _, g := range o.Gangs {
		if g.TopologyKey != "" {
			return true
		}
	}
	return false
}
