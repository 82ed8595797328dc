package whatif

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// maxAdded bounds the nodes that one change adds.
const maxAdded = 10_000

// Changes is how the cluster of the question differs from the one that is. They are made in the order of the fields.
type Changes struct {
	Remove  []string
	Add     []Add
	Layouts []Layout
}

// Add adds Count nodes like the node Like. They are named Like+1, Like+2 and so on, all their GPUs are healthy, and the pods of
// DaemonSets that run on Like run on them, too.
type Add struct {
	Count int
	Like  string
}

// ParseAdd reads COUNT=NODE.
func ParseAdd(text string) (Add, error) {
	number, like, ok := strings.Cut(text, "=")
	count, err := strconv.Atoi(number)
	if !ok || err != nil || count < 1 || count > maxAdded || like == "" {
		return Add{}, fmt.Errorf("%q; want COUNT=NODE with 1 to %d nodes, as in 4=gpu-node-1", text, maxAdded)
	}
	return Add{count, like}, nil
}

// empty tells whether nothing changes.
func (ch *Changes) empty() bool { return len(ch.Remove)+len(ch.Add)+len(ch.Layouts) == 0 }

// texts are the changes in words.
func (ch *Changes) texts() []string {
	texts := []string{}
	for _, name := range ch.Remove {
		texts = append(texts, "without the node "+name)
	}
	for _, a := range ch.Add {
		texts = append(texts, fmt.Sprintf("with %d more like the node %s", a.Count, a.Like))
	}
	for i := range ch.Layouts {
		texts = append(texts, "with the MIG layout "+ch.Layouts[i].Text)
	}
	return texts
}

// changer makes changes to a copy of objects.
type changer struct {
	objects Objects
	names   map[string]bool // of the nodes
	offers  offers
	staying map[string]bool // UIDs of the pods that stay on their node
	held    int             // GPUs that keep their layout
}

// apply returns the objects after the changes. It does not change those that it is given.
func (ch *Changes) apply(objects *Objects) (*Objects, error) {
	c := changer{objects: Objects{
		Nodes: slices.Clone(objects.Nodes), GPUNodes: slices.Clone(objects.GPUNodes), Pods: slices.Clone(objects.Pods), Notes: slices.Clone(objects.Notes),
	}, names: map[string]bool{}, offers: offersOf(objects.GPUNodes), staying: map[string]bool{}}
	for i := range objects.Nodes {
		c.names[objects.Nodes[i].Name] = true
	}
	for i := range objects.Pods {
		if p := &objects.Pods[i]; p.Spec.NodeName != "" && !ended(p) && staysOnNode(p) {
			c.staying[string(p.UID)] = true
		}
	}
	for _, name := range ch.Remove {
		if err := c.remove(name); err != nil {
			return nil, fmt.Errorf("remove a node: %w", err)
		}
	}
	for _, a := range ch.Add {
		if err := c.add(a); err != nil {
			return nil, fmt.Errorf("add nodes: %w", err)
		}
	}
	for i := range ch.Layouts {
		if err := c.layout(&ch.Layouts[i]); err != nil {
			return nil, fmt.Errorf("change the MIG layout: %w", err)
		}
	}
	if c.held > 0 {
		c.objects.Notes = append(c.objects.Notes, fmt.Sprintf(
			"GPUs that keep their MIG layout, since ResourceClaims, maintenance or pods that stay on their node hold them: %d", c.held))
	}
	return &c.objects, nil
}

// find returns the position of a node.
func (c *changer) find(name string) (int, error) {
	if at := c.at(name); at >= 0 {
		return at, nil
	}
	var names []string
	for i := range c.objects.Nodes {
		names = append(names, c.objects.Nodes[i].Name)
	}
	slices.Sort(names)
	hint := ""
	if nearest := spelling.Nearest(name, names); nearest != "" {
		hint = fmt.Sprintf("; did you mean %s?", nearest)
	}
	return 0, fmt.Errorf("there is no Node %q among %d%s", name, len(names), hint)
}

// at returns the position of a node, or -1.
func (c *changer) at(name string) int {
	if c.names[name] {
		for i := range c.objects.Nodes {
			if c.objects.Nodes[i].Name == name {
				return i
			}
		}
	}
	return -1
}

// remove removes a node with the pods that exist only on it. The others stay in the list, to be placed elsewhere.
func (c *changer) remove(name string) error {
	at, err := c.find(name)
	if err != nil {
		return err
	}
	c.objects.Nodes = slices.Delete(c.objects.Nodes, at, at+1)
	delete(c.names, name)
	c.objects.GPUNodes = slices.DeleteFunc(c.objects.GPUNodes, func(n v1alpha1.GPUNode) bool { return n.Name == name })
	return nil
}

func (c *changer) add(a Add) error {
	at, err := c.find(a.Like)
	if err != nil {
		return err
	}
	if len(c.objects.Nodes)+a.Count > maxNodes {
		return fmt.Errorf("%d and %d more; want at most %d", len(c.objects.Nodes), a.Count, maxNodes)
	}
	like := c.objects.Nodes[at]
	gpuNode := slices.IndexFunc(c.objects.GPUNodes, func(n v1alpha1.GPUNode) bool { return n.Name == a.Like })
	var daemons []corev1.Pod
	for i := range c.objects.Pods {
		if p := &c.objects.Pods[i]; p.Spec.NodeName == a.Like && fixedToNode(p) && len(p.Spec.ResourceClaims) == 0 {
			daemons = append(daemons, *p)
		}
	}
	added := 0
	for number := 1; added < a.Count; number++ {
		name := fmt.Sprintf("%s+%d", a.Like, number)
		if c.names[name] {
			continue // An earlier change added it.
		}
		c.names[name] = true
		added++
		node := copyNode(&like, name)
		if gpuNode >= 0 {
			made := copyGPUNode(&c.objects.GPUNodes[gpuNode], name)
			offer(node, &c.objects.GPUNodes[gpuNode], made)
			c.objects.GPUNodes = append(c.objects.GPUNodes, *made)
		}
		c.objects.Nodes = append(c.objects.Nodes, *node)
		for _, p := range daemons {
			p.Spec.NodeName, p.Name, p.UID = name, p.Name+"+"+name, p.UID+types.UID("+"+name)
			c.objects.Pods = append(c.objects.Pods, p)
		}
	}
	return nil
}

// copyNode returns a node like another one on its first day: ready, not cordoned, validated.
func copyNode(like *corev1.Node, name string) *corev1.Node {
	node := like.DeepCopy()
	node.Name, node.Spec.Unschedulable = name, false
	if _, has := node.Labels[corev1.LabelHostname]; has {
		node.Labels[corev1.LabelHostname] = name
	}
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/") || t.Value == v1alpha1.TaintNotValidatedValue
	})
	return node
}

func copyGPUNode(like *v1alpha1.GPUNode, name string) *v1alpha1.GPUNode {
	node := like.DeepCopy()
	node.Name = name
	if node.Status.Gate != nil {
		node.Status.Gate.State, node.Status.Gate.Tainted = v1alpha1.GateValidated, false
	}
	well := func(o *v1alpha1.DeviceOffer) {
		if o != nil {
			o.Draining = ""
		}
	}
	for i := range node.Status.Devices {
		d := &node.Status.Devices[i]
		d.UUID += "+" + name
		d.Holders, d.Health = nil, v1alpha1.DeviceHealth{State: string(gpu.Healthy)}
		well(d.Offered)
		for k := range d.MIGDevices {
			m := &d.MIGDevices[k]
			m.UUID += "+" + name
			m.Holders, m.Health = nil, nil
			well(m.Offered)
		}
	}
	return node
}

// offered counts the devices that a node's device plugin advertises, by resource.
func offered(node *v1alpha1.GPUNode) map[string]int64 {
	counts := map[string]int64{}
	count := func(o *v1alpha1.DeviceOffer, state string) {
		if o != nil && o.API != string(v1alpha1.AllocationDRA) && o.Resource != "" && o.Draining == "" {
			if s := gpu.State(state); s == gpu.Healthy || s == gpu.Degraded {
				counts[o.Resource] += int64(max(1, o.Replicas))
			}
		}
	}
	for i := range node.Status.Devices {
		d := &node.Status.Devices[i]
		if d.Excluded {
			continue
		}
		if len(d.MIGDevices) == 0 {
			count(d.Offered, d.Health.State)
		}
		for k := range d.MIGDevices {
			m := &d.MIGDevices[k]
			state := d.Health.State
			if m.Health != nil {
				state = m.Health.State
			}
			count(m.Offered, state)
		}
	}
	return counts
}

// offer sets what a Node advertises to what its changed GPUNode says.
func offer(node *corev1.Node, before, after *v1alpha1.GPUNode) {
	node.Status.Allocatable = maps.Clone(node.Status.Allocatable)
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = corev1.ResourceList{}
	}
	for name := range offered(before) {
		delete(node.Status.Allocatable, corev1.ResourceName(name))
	}
	for name, count := range offered(after) {
		node.Status.Allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
}

// alive tells whether the agent of a node advertises its devices.
func alive(node *corev1.Node, of *v1alpha1.GPUNode) bool {
	for name := range offered(of) {
		if quantity := node.Status.Allocatable[corev1.ResourceName(name)]; quantity.Sign() > 0 {
			return true
		}
	}
	return false
}
