package model

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// seed is that of the fixed order in which nodes get ties. All replicas of a scheduler decide alike.
const seed = 0

// Deps are what a Model needs.
type Deps struct {
	// Checked is called once for each prediction whose pod a GPUNode names.
	Checked func(Check)
}

// Check compares a prediction with what the kubelet has allocated.
type Check struct {
	Pod  types.UID
	Node string
	// Predicted and Allocated are UUIDs of GPUs, ascending.
	Predicted []string
	Allocated []string
	// Seen are the GPUs of the node as they were known at the prediction, see fleetview.View.Letters.
	Seen string
	// Excluded is why the prediction does not count, such as the kubelet's topology manager; empty when it does.
	Excluded string
}

// Hit tells whether they are the same.
func (c Check) Hit() bool { return slices.Equal(c.Predicted, c.Allocated) }

// Model is the state of a scheduler.
type Model struct {
	deps Deps

	mu sync.Mutex // guards the fields of this block
	// hardware is what GPUNodes say, by node. changed are the nodes whose view has to be computed again.
	hardware map[string]*fleetview.Hardware
	changed  map[string]bool
	// assumed are the predictions, by pod, and by node the pods.
	assumed map[types.UID]*assumption
	onNode  map[string]map[types.UID]bool
	// offers is false while the resources have to be collected again.
	offers bool

	// resources are those of the cluster; they are replaced, never changed.
	resources atomic.Pointer[fleetview.Resources]

	// The rest belongs to the scheduling cycle.
	fleet       *fleet.Fleet
	views       []fleetview.View // by index of the fleet
	seen        []int64          // the generation of each node in the snapshot, by index of the fleet
	snapshot    []fwk.NodeInfo
	index       []int // of the fleet, by position in the snapshot
	generations []int64
	nodes       []*corev1.Node // by index of the fleet
	version     uint64
	deciders    map[string]*fleet.Decider
	planners    map[string]*gang.Planner
	topologies  map[string]*gang.Topology
	mix         mix
}

// assumption is the prediction for a pod.
type assumption struct {
	node string
	gpus [][]string
	// devices is how many devices the pod requests.
	devices int
	seen    string
	checked bool
}

// New returns an empty model.
func New(deps Deps) *Model {
	m := &Model{
		deps: deps, hardware: map[string]*fleetview.Hardware{}, changed: map[string]bool{}, assumed: map[types.UID]*assumption{},
		onNode: map[string]map[types.UID]bool{}, deciders: map[string]*fleet.Decider{}, planners: map[string]*gang.Planner{},
		topologies: map[string]*gang.Topology{},
	}
	m.resources.Store(&fleetview.Resources{})
	return m
}

// SetHardware sets what the GPUNode of a node says.
func (m *Model) SetHardware(h *fleetview.Hardware) {
	m.mu.Lock()
	m.hardware[h.Node] = h
	m.changed[h.Node], m.offers = true, false
	checks := m.compare(h)
	m.mu.Unlock()
	for _, c := range checks {
		if m.deps.Checked != nil {
			m.deps.Checked(c)
		}
	}
}

// DropHardware says that a node has no GPUNode.
func (m *Model) DropHardware(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hardware, node)
	m.changed[node], m.offers = true, false
}

// Assume keeps the GPUs that a pod is predicted to get on a node: a list of UUIDs for each of its requests. It is for the scheduling cycle.
func (m *Model) Assume(pod types.UID, node string, requests []fleet.Shape, gpus [][]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &assumption{node: node, gpus: gpus}
	if i, ok := m.Index(node); ok {
		a.seen = m.views[i].Letters()
	}
	for i := range requests {
		a.devices += int(requests[i].GPUs)
	}
	m.assumed[pod] = a
	if m.onNode[node] == nil {
		m.onNode[node] = map[types.UID]bool{}
	}
	m.onNode[node][pod], m.changed[node] = true, true
}

// Forget ends the prediction for a pod.
func (m *Model) Forget(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(pod)
}

func (m *Model) forget(pod types.UID) {
	a := m.assumed[pod]
	if a == nil {
		return
	}
	delete(m.assumed, pod)
	delete(m.onNode[a.node], pod)
	if len(m.onNode[a.node]) == 0 {
		delete(m.onNode, a.node)
	}
	m.changed[a.node] = true
}

// Sync brings the model in line with the scheduler's snapshot.
func (m *Model) Sync(nodes []fwk.NodeInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.offers {
		m.collectOffers()
	}
	if m.fleet == nil || !slices.Equal(nodes, m.snapshot) {
		m.rebuild(nodes)
		return
	}
	for i, n := range nodes {
		if generation := n.GetGeneration(); generation != m.generations[i] || len(m.changed) > 0 && m.changed[n.Node().Name] {
			m.generations[i] = generation
			k := m.index[i]
			m.views[k], m.seen[k] = m.view(n), generation
			m.version++
			if node := n.Node(); node != m.nodes[k] {
				m.nodes[k] = node
				clear(m.topologies)
			}
			// A view has only values that fleet accepts.
			_ = m.fleet.Replace(k, m.views[k].Node)
		}
	}
	clear(m.changed)
}

// collectOffers lists the resources of all GPUNodes. When there are other ones, every request may mean something else.
func (m *Model) collectOffers() {
	m.offers = true
	resources := fleetview.Resources{}
	for _, h := range m.hardware {
		resources.Add(h)
	}
	if !maps.Equal(resources, *m.resources.Load()) {
		m.resources.Store(&resources)
		m.fleet = nil
	}
}

// rebuild makes the fleet of all nodes.
func (m *Model) rebuild(nodes []fwk.NodeInfo) {
	m.snapshot = slices.Clone(nodes)
	m.generations, m.index = make([]int64, len(nodes)), make([]int, len(nodes))
	views, list := map[string]fleetview.View{}, make([]fleet.Node, 0, len(nodes))
	for i, n := range nodes {
		m.generations[i] = n.GetGeneration()
		v := m.view(n)
		views[v.Node.Name] = v
		list = append(list, v.Node)
	}
	m.forgetGone(views)
	f, err := fleet.New(list, seed)
	if err != nil {
		// No view is refused; an empty fleet leaves every decision to the other plugins.
		f, _ = fleet.New(nil, seed)
	}
	m.fleet, m.views, m.seen, m.nodes = f, make([]fleetview.View, f.Len()), make([]int64, f.Len()), make([]*corev1.Node, f.Len())
	for i, n := range nodes {
		if k, ok := f.Find(n.Node().Name); ok {
			m.index[i], m.views[k], m.seen[k], m.nodes[k] = k, views[n.Node().Name], m.generations[i], n.Node()
		}
	}
	m.version++
	clear(m.deciders)
	clear(m.planners)
	clear(m.topologies)
	clear(m.changed)
}

// forgetGone ends the predictions for pods of nodes that do not exist any more.
func (m *Model) forgetGone(views map[string]fleetview.View) {
	for node, pods := range m.onNode {
		if _, exists := views[node]; exists {
			continue
		}
		for uid := range pods {
			m.forget(uid)
		}
	}
}

// view returns the view of a node of the snapshot, counts its pods for the mix, and settles the predictions.
func (m *Model) view(n fwk.NodeInfo) fleetview.View {
	in := m.input(n)
	here := map[types.UID]bool{}
	for i := range in.Pods {
		uid := types.UID(in.Pods[i].UID)
		here[uid] = true
		if len(in.Pods[i].Requests) > 0 {
			m.mix.see(uid, in.Pods[i].Requests)
		}
	}
	m.settle(n.Node().Name, here)
	return fleetview.Build(in)
}

// input collects what a node is made of.
func (m *Model) input(n fwk.NodeInfo) fleetview.Input {
	node := n.Node()
	resources := *m.resources.Load()
	in := fleetview.Input{Node: node, Hardware: m.hardware[node.Name], Resources: resources}
	requested := n.GetRequested()
	in.CPU, in.Memory = requested.GetMilliCPU(), (requested.GetMemory()+1<<20-1)>>20
	for _, info := range n.GetPods() {
		pod := info.GetPod()
		made := fleetview.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name}
		if wantsGPU(info, resources) {
			made.Requests = resources.Requests(pod)
		}
		if a := m.assumed[pod.UID]; a != nil && a.node == node.Name {
			made.Assumed = a.gpus
		}
		in.Pods = append(in.Pods, made)
	}
	sortByBinding(in.Pods, n)
	return in
}

// wantsGPU tells whether a pod requests devices of a resource.
func wantsGPU(info fwk.PodInfo, resources fleetview.Resources) bool {
	for name, count := range info.CalculateResource().Resource.GetScalarResources() {
		if count > 0 && resources.Is(name) {
			return true
		}
	}
	return false
}

// sortByBinding sorts the pods of a node by the time at which they were bound, as far as it is known: pods that this scheduler has just
// bound come last, in its order.
func sortByBinding(pods []fleetview.Pod, n fwk.NodeInfo) {
	bound := map[string]int64{}
	for _, info := range n.GetPods() {
		bound[string(info.GetPod().UID)] = boundAt(info.GetPod())
	}
	slices.SortStableFunc(pods, func(a, b fleetview.Pod) int { return cmp.Compare(bound[a.UID], bound[b.UID]) })
}

// boundAt returns the second in which a pod was bound, the latest for one whose condition does not say it yet.
func boundAt(pod *corev1.Pod) int64 {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Unix()
		}
	}
	return 1<<62 - 1
}

// settle ends the predictions for pods that are not on the node any more.
func (m *Model) settle(node string, here map[types.UID]bool) {
	for uid := range m.onNode[node] {
		if !here[uid] {
			m.forget(uid)
			delete(m.changed, node) // It is being computed.
		}
	}
}

// compare compares the predictions for pods that a GPUNode names with all their devices.
func (m *Model) compare(h *fleetview.Hardware) []Check {
	var checks []Check
	for _, uid := range slices.Sorted(maps.Keys(m.onNode[h.Node])) {
		a := m.assumed[uid]
		allocated, devices := h.HeldBy(string(uid))
		if a.checked || devices == 0 || devices < a.devices {
			continue
		}
		a.checked = true
		checks = append(checks, Check{Pod: uid, Node: h.Node, Predicted: flat(a.gpus), Allocated: allocated, Seen: a.seen, Excluded: h.Unpredictable()})
	}
	return checks
}

// flat returns the UUIDs of all requests, ascending, each once.
func flat(lists [][]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
