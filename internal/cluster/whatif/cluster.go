package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// typicalCover is the fraction of the pods that the typical shapes cover, typicalShapes how many shapes these are at most; both as for the
// scheduler.
const (
	typicalCover  = 0.95
	typicalShapes = 128
)

// cluster is the nodes and pods of some objects, in an order that does not depend on that of the lists.
type cluster struct {
	members   []member // by name
	index     map[string]int
	reader    *fleetview.Reader
	resources fleetview.Resources
	pods      []pod // those that are placed again, in the order of their creation
	groups    []group
	mix       fleet.Mix
	skipped   skipped
	notes     []string
}

// member is a node of the cluster.
type member struct {
	node     *corev1.Node
	gpuNode  *v1alpha1.GPUNode   // nil where there is none
	hardware *fleetview.Hardware // with the holders as they are
	// bound are the pods of the node, in the order of their creation; fixed those of them that stay on it.
	bound []*corev1.Pod
	fixed []*corev1.Pod
}

// pod is a pod that is placed again.
type pod struct {
	object  *corev1.Pod
	waiting bool
	group   int
}

// group is the pods with equal requests and constraints.
type group struct {
	requests   []fleet.Shape
	constraint *constraint
	pods       int
}

// demand is what a pod of the group takes of GPUs, in thousandths.
func (g *group) demand(r fleetview.Resources) int64 {
	sum := int64(0)
	for i := range g.requests {
		s := &g.requests[i]
		unit := int64(fleet.Whole)
		if offer, known := r[s.Resource]; known && offer.Unit > 0 {
			unit = int64(offer.Unit)
		}
		sum += int64(s.GPUs) * unit
	}
	return sum
}

// skipped counts the pods that are not placed again.
type skipped struct {
	fixed       int
	gated       int
	claims      int
	terminating int
	ignored     int
}

// fixedToNode tells whether a pod exists only on its node.
func fixedToNode(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// staysOnNode tells whether a pod that is bound is not placed again.
func staysOnNode(p *corev1.Pod) bool { return fixedToNode(p) || len(p.Spec.ResourceClaims) > 0 }

// byCreation compares pods by their creation, then by name.
func byCreation(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// newCluster reads objects. The error is that of objects that cannot be of one cluster.
func newCluster(objects *Objects) (*cluster, error) {
	c := &cluster{index: map[string]int{}, reader: fleetview.NewReader(), resources: fleetview.Resources{}, notes: slices.Clone(objects.Notes)}
	if len(objects.Nodes) == 0 {
		return nil, fmt.Errorf("there is no Node; want the nodes of a cluster, as from %s", DumpCommand)
	}
	if len(objects.Nodes) > maxNodes {
		return nil, fmt.Errorf("there are %d Nodes; want at most %d", len(objects.Nodes), maxNodes)
	}
	for i := range objects.Nodes {
		c.members = append(c.members, member{node: &objects.Nodes[i]})
	}
	slices.SortStableFunc(c.members, func(a, b member) int { return cmp.Compare(a.node.Name, b.node.Name) })
	for i := range c.members {
		name := c.members[i].node.Name
		if _, double := c.index[name]; double || name == "" {
			return nil, fmt.Errorf("the Node %q is listed twice, or has no name; want each node of one cluster once", name)
		}
		c.index[name] = i
	}
	if err := c.addGPUNodes(objects.GPUNodes); err != nil {
		return nil, err
	}
	return c, c.addPods(objects.Pods)
}

func (c *cluster) addGPUNodes(list []v1alpha1.GPUNode) error {
	for i := range list {
		at, known := c.index[list[i].Name]
		if !known {
			continue // The node was deleted.
		}
		m := &c.members[at]
		if m.gpuNode != nil {
			return fmt.Errorf("the GPUNode %q is listed twice; want each once", list[i].Name)
		}
		m.gpuNode = &list[i]
	}
	for i := range c.members {
		m := &c.members[i]
		if m.gpuNode == nil {
			continue
		}
		m.hardware = c.reader.Read(m.gpuNode)
		c.resources.Add(m.hardware)
		if m.hardware.Note != "" {
			c.notes = append(c.notes, m.hardware.Note)
		}
	}
	return nil
}

// ended tells whether a pod takes nothing any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (c *cluster) addPods(list []corev1.Pod) error {
	var pods []*corev1.Pod
	for i := range list {
		if !ended(&list[i]) {
			pods = append(pods, &list[i])
		}
	}
	slices.SortStableFunc(pods, byCreation)
	seen := map[string]bool{}
	groups := newGrouper(c)
	for _, p := range pods {
		name := p.Namespace + "/" + p.Name
		if seen[name] {
			return fmt.Errorf("the Pod %s is listed twice; want each pod of one cluster once", name)
		}
		seen[name] = true
		c.addPod(p, groups)
	}
	c.groups = groups.list
	for i := range c.groups {
		c.groups[i].constraint.ask(c)
	}
	c.mix = c.typical()
	return nil
}

func (c *cluster) addPod(p *corev1.Pod, groups *grouper) {
	waiting := p.Spec.NodeName == ""
	stays := staysOnNode(p)
	if at, known := c.index[p.Spec.NodeName]; known {
		c.members[at].bound = append(c.members[at].bound, p)
		if stays {
			c.members[at].fixed = append(c.members[at].fixed, p)
		}
	} else if !waiting && stays {
		return // It ends with its node. The others are created again elsewhere.
	}
	switch {
	case p.DeletionTimestamp != nil:
		c.skipped.terminating++
	case stays && !waiting:
		c.skipped.fixed++
	case len(p.Spec.ResourceClaims) > 0:
		c.skipped.claims++
	case stays: // A pod of a DaemonSet that waits for its own node.
	case len(p.Spec.SchedulingGates) > 0:
		c.skipped.gated++
	default:
		if ignored(p) {
			c.skipped.ignored++
		}
		c.pods = append(c.pods, pod{p, waiting, groups.of(p)})
	}
}

// grouper finds the groups of pods.
type grouper struct {
	cluster     *cluster
	list        []group
	byKey       map[string]int
	constraints map[string]*constraint
}

func newGrouper(c *cluster) *grouper {
	return &grouper{cluster: c, byKey: map[string]int{}, constraints: map[string]*constraint{}}
}

func (g *grouper) of(p *corev1.Pod) int {
	requests := g.cluster.resources.Requests(p)
	limit := constraintKey(p)
	key := strings.Builder{}
	for i := range requests {
		fmt.Fprintf(&key, "%s|%d\n", requests[i], requests[i].Traffic)
	}
	key.WriteString(limit)
	at, known := g.byKey[key.String()]
	if !known {
		if g.constraints[limit] == nil {
			g.constraints[limit] = &constraint{pod: p}
		}
		at = len(g.list)
		g.byKey[key.String()] = at
		g.list = append(g.list, group{requests: requests, constraint: g.constraints[limit]})
	}
	g.list[at].pods++
	return at
}

// ask asks once for all nodes.
func (c *constraint) ask(of *cluster) {
	if c.nodes != nil {
		return
	}
	c.nodes = make([]bool, len(of.members))
	for i := range of.members {
		c.nodes[i] = c.allows(of.members[i].node)
	}
}

// typical returns the mix of the pods that request GPUs, those that run and those that wait. As for the scheduler, the first request of a
// pod counts, which has its CPU and memory.
func (c *cluster) typical() fleet.Mix {
	var shapes []fleet.Shape
	for i := range c.pods {
		if s := c.groups[c.pods[i].group].requests[0]; s.GPUs > 0 {
			shapes = append(shapes, s)
		}
	}
	mix := c.resources.Typical(shapes, typicalCover)
	return mix[:min(len(mix), typicalShapes)]
}

// now returns the nodes with all their pods.
func (c *cluster) now() []fleetview.View {
	views := make([]fleetview.View, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		views[i] = c.view(m, m.hardware, m.bound)
	}
	return views
}

// empty returns the nodes with those pods alone that stay on them.
func (c *cluster) empty() []fleetview.View {
	views := make([]fleetview.View, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		hardware := m.hardware
		if m.gpuNode != nil {
			hardware = c.reader.Read(emptied(m))
		}
		views[i] = c.view(m, hardware, m.fixed)
	}
	return views
}

func (c *cluster) view(m *member, hardware *fleetview.Hardware, pods []*corev1.Pod) fleetview.View {
	in := fleetview.Input{Node: m.node, Hardware: hardware, Resources: c.resources}
	for _, p := range pods {
		requests := c.resources.Requests(p)
		in.CPU, in.Memory = in.CPU+requests[0].CPU, in.Memory+requests[0].Memory
		in.Pods = append(in.Pods, fleetview.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Requests: requests})
	}
	return fleetview.Build(in)
}

// emptied returns the GPUNode of a node with those holders alone that stay.
func emptied(m *member) *v1alpha1.GPUNode {
	stay := map[string]bool{}
	for _, p := range m.fixed {
		stay[string(p.UID)] = true
	}
	return withHolders(m.gpuNode, func(h *v1alpha1.Holder) bool { return gpu.HolderKind(h.Kind) != gpu.HolderPod || stay[h.PodUID] })
}

// withHolders returns a copy with the holders that are kept.
func withHolders(node *v1alpha1.GPUNode, keep func(*v1alpha1.Holder) bool) *v1alpha1.GPUNode {
	filter := func(list []v1alpha1.Holder) (kept []v1alpha1.Holder) {
		for i := range list {
			if keep(&list[i]) {
				kept = append(kept, list[i])
			}
		}
		return kept
	}
	made := *node
	made.Status.Devices = slices.Clone(node.Status.Devices)
	for i := range made.Status.Devices {
		d := &made.Status.Devices[i]
		d.Holders = filter(d.Holders)
		d.MIGDevices = slices.Clone(d.MIGDevices)
		for k := range d.MIGDevices {
			d.MIGDevices[k].Holders = filter(d.MIGDevices[k].Holders)
		}
	}
	return &made
}
