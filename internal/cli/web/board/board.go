package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Input is what a board is computed from.
type Input struct {
	Time     time.Time
	Filter   v1alpha1.BoardFilter
	GPUNodes []v1alpha1.GPUNode
	// Nodes are nil where they could not be read.
	Nodes []corev1.Node
	// Bound are when pods with devices were bound, by UID.
	Bound map[string]*metav1.Time
	// Agents says by node whether a pod of the agent is ready there; nil where that is not known.
	Agents map[string]bool
	// Samples are the measurements of nodes, by name, as far as they were read.
	Samples map[string]*v1alpha1.GPUSamples
	// May tells whether the user may list the pods of a namespace.
	May func(namespace string) bool
	// Waiting is all that waits, the oldest first, and Reasons why, as far as that was evaluated.
	Waiting []v1alpha1.BoardWaiting
	Reasons Reasons
	// Notes say what could not be read.
	Notes []string
	// MostNodes is how many nodes are shown one by one; 0 means 40.
	MostNodes int
}

// Reasons say why pods wait, by NAMESPACE/NAME of the pod.
type Reasons struct {
	// Time is when the oldest of them was evaluated.
	Time time.Time
	Pods map[string]*v1alpha1.Why
}

const (
	defaultMostNodes = 40
	// mostWaiting is how many pods and gangs are listed that wait.
	mostWaiting = 12
	// mostAll bounds the nodes of a page on which all are wanted.
	mostAll = 1000
	// mostAway is how many nodes that are away are listed one by one.
	mostAway = 5
	// mostProblems bounds the problems of a page, mostText the length of a text that others have written.
	mostProblems = 100
	mostText     = 300
)

// builder computes one board.
type builder struct {
	in    *Input
	nodes map[string]*corev1.Node
	may   map[string]bool
	board *v1alpha1.Board
	held  map[string]*holdings
	// manyAway is true where more than mostAway nodes are away.
	manyAway bool
	// names and namespaces are what text finds names with.
	names      *textNames
	namespaces map[string]bool
}

// Build computes a board.
func Build(in *Input) *v1alpha1.Board {
	b := &builder{
		in: in, nodes: map[string]*corev1.Node{}, may: map[string]bool{},
		held: map[string]*holdings{},
		board: &v1alpha1.Board{
			TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindBoard), Time: metav1.NewTime(in.Time.UTC().Truncate(time.Second)), Filter: in.Filter,
			Nodes: []v1alpha1.BoardNode{}, Waiting: []v1alpha1.BoardWaiting{}, Problems: []v1alpha1.BoardProblem{},
			Namespaces: []v1alpha1.BoardNamespace{}, Notes: slices.Clone(in.Notes),
		},
	}
	for i := range in.Nodes {
		b.nodes[in.Nodes[i].Name] = &in.Nodes[i]
	}
	nodes := make([]*v1alpha1.GPUNode, 0, len(in.GPUNodes))
	for i := range in.GPUNodes {
		if n := &in.GPUNodes[i]; b.selects(n) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *v1alpha1.GPUNode) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		b.add(n)
	}
	b.awayNodes()
	b.group()
	b.wait()
	b.finish()
	return b.board
}

// BoundAt is when a pod was bound to its node.
func BoundAt(pod *corev1.Pod) *metav1.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return &c.LastTransitionTime
		}
	}
	return pod.Status.StartTime
}

// selects tells whether the filter selects a node.
func (b *builder) selects(n *v1alpha1.GPUNode) bool {
	f := &b.in.Filter
	if f.Node != "" && n.Name != f.Node || f.Model != "" && n.Status.Summary.Model != f.Model {
		return false
	}
	return f.Namespace == "" || slices.ContainsFunc(n.Status.Devices, func(d v1alpha1.GPUDevice) bool {
		in := func(h v1alpha1.Holder) bool { return h.Namespace == f.Namespace && b.shows(h.Namespace) }
		return slices.ContainsFunc(d.Holders, in) ||
			slices.ContainsFunc(d.MIGDevices, func(m v1alpha1.MIGDevice) bool { return slices.ContainsFunc(m.Holders, in) })
	})
}

// shows tells whether the names of a namespace's pods may be shown.
func (b *builder) shows(namespace string) bool {
	if may, known := b.may[namespace]; known {
		return may
	}
	b.may[namespace] = b.in.May == nil || b.in.May(namespace)
	return b.may[namespace]
}

// add adds a node, its problems and what is held there.
func (b *builder) add(n *v1alpha1.GPUNode) {
	status := &n.Status
	node := v1alpha1.BoardNode{
		Name: n.Name, Driver: status.Driver.Version, Counts: status.Summary, Away: b.away(n.Name), Written: written(n), GPUs: []v1alpha1.BoardGPU{},
	}
	if object := b.nodes[n.Name]; object != nil {
		node.Cordoned = object.Spec.Unschedulable
	}
	if gate := status.Gate; gate != nil {
		node.State = string(gate.State)
		if gate.State != v1alpha1.GateValidated {
			node.WaitsFor = b.text(gate.Message)
		}
	}
	samples := b.in.Samples[n.Name]
	if samples != nil && !samples.Time.IsZero() {
		node.Measured = new(metav1.NewTime(samples.Time.Time))
	}
	numa := make([]int, len(status.Devices))
	for i := range status.Devices {
		numa[i] = status.Devices[i].NUMANode
	}
	for _, p := range order(status.Topology, numa) {
		g := b.gpu(&status.Devices[p.at], samples)
		g.Linked, g.Border = p.linked, p.border
		node.GPUs = append(node.GPUs, g)
	}
	b.problems(n)
	total := &b.board.Totals
	total.GPUs, total.Held = total.GPUs+status.Summary.GPUs, total.Held+status.Summary.Held
	total.Free, total.Unhealthy = total.Free+status.Summary.Free, total.Unhealthy+status.Summary.Unhealthy
	b.board.Nodes = append(b.board.Nodes, node)
}

// noAgent is why the facts of a node without a running agent may be old.
const noAgent = "no pod of the agent is ready on this node"

// away says why the facts of a node may be old.
func (b *builder) away(name string) string {
	object := b.nodes[name]
	if b.in.Nodes != nil && object == nil {
		return "the cluster has no Node of this name"
	}
	if object != nil {
		for i := range object.Status.Conditions {
			if c := &object.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Sprintf("the node is not ready since %s", c.LastTransitionTime.UTC().Format(time.RFC3339))
			}
		}
	}
	if b.in.Agents != nil && !b.in.Agents[name] {
		return noAgent
	}
	return ""
}

// written is when the agent wrote an object the last time.
func written(n *v1alpha1.GPUNode) *metav1.Time {
	var last *metav1.Time
	for i := range n.ManagedFields {
		if at := n.ManagedFields[i].Time; at != nil && (last == nil || last.Before(at)) {
			last = at
		}
	}
	if last == nil && !n.CreationTimestamp.IsZero() {
		last = &n.CreationTimestamp
	}
	return last
}

// gpu returns a GPU with its devices.
func (b *builder) gpu(d *v1alpha1.GPUDevice, samples *v1alpha1.GPUSamples) v1alpha1.BoardGPU {
	g := v1alpha1.BoardGPU{
		UUID: d.UUID, Vendor: d.Vendor, Index: d.Index, Product: short(d.Product), NUMANode: d.NUMANode, Health: *d.Health.DeepCopy(),
	}
	for i := range g.Health.Causes {
		c := &g.Health.Causes[i]
		c.Message, c.Recover = b.text(c.Message), b.text(c.Recover)
	}
	sample := sampleOf(samples, d.UUID)
	var use *v1alpha1.GPUSampleUse
	var active *float64
	if sample != nil {
		use, active = &sample.GPUSampleUse, sample.Utilization
	}
	var measured bool
	g.BoardDevice, measured = b.device(d.Offered, d.Holders, d.MemoryBytes, use, active)
	for i := range d.MIGDevices {
		m := &d.MIGDevices[i]
		part := v1alpha1.BoardPart{UUID: m.UUID, Profile: m.Profile, Start: m.Start, Size: m.Size, State: d.Health.State}
		if m.Health != nil {
			part.State = m.Health.State
		}
		var partUse *v1alpha1.GPUSampleUse
		if sample != nil {
			for k := range sample.Devices {
				if sample.Devices[k].UUID == m.UUID {
					partUse = &sample.Devices[k].GPUSampleUse
				}
			}
		}
		var partActive *float64
		if partUse != nil {
			partActive = partUse.Active
		}
		var measured bool
		part.BoardDevice, measured = b.device(m.Offered, m.Holders, m.MemoryBytes, partUse, partActive)
		b.count(m.Holders, &part.BoardDevice, measured, func(n *v1alpha1.BoardNamespace) { n.Parts++ })
		g.Parts = append(g.Parts, part)
		g.Slices = max(g.Slices, m.Start+m.Size)
	}
	if len(d.MIGDevices) > 0 {
		for _, p := range d.MIGProfiles {
			for _, start := range p.Starts {
				g.Slices = max(g.Slices, start+p.Size)
			}
		}
	}
	slices.SortFunc(g.Parts, func(a, b v1alpha1.BoardPart) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), strings.Compare(a.UUID, b.UUID))
	})
	b.count(d.Holders, &g.BoardDevice, measured, func(n *v1alpha1.BoardNamespace) { n.GPUs++ })
	return g
}

func sampleOf(samples *v1alpha1.GPUSamples, uuid string) *v1alpha1.GPUSample {
	if samples == nil {
		return nil
	}
	for i := range samples.Items {
		if samples.Items[i].UUID == uuid {
			return &samples.Items[i]
		}
	}
	return nil
}

// device returns what a GPU and a MIG device have in common. measured tells whether it is known if the device computed something.
func (b *builder) device(offer *v1alpha1.DeviceOffer, holders []v1alpha1.Holder, memory int64, use *v1alpha1.GPUSampleUse, active *float64) (d v1alpha1.BoardDevice, measured bool) {
	d = v1alpha1.BoardDevice{MemoryBytes: memory}
	if offer != nil {
		d.Resource, d.Replicas, d.Draining = offer.Resource, offer.Replicas, b.text(offer.Draining)
	}
	for i := range holders {
		d.Holders = append(d.Holders, b.holder(&holders[i]))
	}
	slices.SortStableFunc(d.Holders, func(a, b v1alpha1.BoardHolder) int {
		return cmp.Or(cmp.Compare(a.Share, b.Share), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if use != nil {
		if use.MemoryUsedBytes != nil {
			d.MemoryUsedBytes = new(int64(*use.MemoryUsedBytes))
		}
		if active == nil {
			active = use.Active
		}
		measured = active != nil
		d.Idle = len(holders) > 0 && measured && *active < gpu.IdleBelow
	}
	return d, measured
}

// holder returns a holder, without its names where the user may not see them.
func (b *builder) holder(h *v1alpha1.Holder) v1alpha1.BoardHolder {
	made := v1alpha1.BoardHolder{Kind: h.Kind, Share: h.Share, Since: b.in.Bound[h.PodUID]}
	if h.Namespace == "" {
		return made // Maintenance
	}
	if !b.shows(h.Namespace) {
		made.Hidden, made.Since = true, nil
		return made
	}
	made.Namespace, made.Name = h.Namespace, short(cmp.Or(h.Pod, h.Claim))
	if made.Since == nil && len(h.Pods) > 0 {
		made.Since = b.in.Bound[h.Pods[0].UID]
	}
	return made
}

// short bounds a text that others have written.
func short(text string) string {
	runes := []rune(strings.ToValidUTF8(text[:min(len(text), 4*mostText+4)], "\uFFFD"))
	if len(runes) <= mostText {
		return string(runes)
	}
	return string(runes[:mostText-1]) + "…"
}
