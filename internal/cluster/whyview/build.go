package whyview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/why"
)

// Objects are what is read of a cluster.
type Objects struct {
	Nodes    []corev1.Node
	GPUNodes []v1alpha1.GPUNode
	// Unreadable are the errors of GPUNodes that could not be decoded, by the name of the node.
	Unreadable map[string]error
	// Pods are all pods of the cluster.
	Pods []corev1.Pod
	// Quotas are those of the namespace of the pod.
	Quotas []corev1.ResourceQuota
	// Notes are what could not be read, one sentence each.
	Notes []string
	Now   time.Time
}

// builder makes the values for one pod.
type builder struct {
	objects   *Objects
	pod       *corev1.Pod
	hardware  map[string]*fleetview.Hardware
	gpuNodes  map[string]*v1alpha1.GPUNode
	resources fleetview.Resources
	byNode    map[string][]*corev1.Pod
	// served are resources that claims serve instead of device plugins.
	served map[string]bool
	others []string
	rules  rules
	in     why.Input
	// views are the nodes without what concerns the pod, by name.
	views map[string]*nodeView
}

// nodeView is a node with the pods on it.
type nodeView struct {
	fleetview.View
	pods     []*corev1.Pod
	requests [][]fleet.Shape
}

// Build returns the values for a pod. served are resources of the pod that its claims serve, on all nodes; they do not count.
func Build(objects *Objects, pod *corev1.Pod, served []string) why.Input {
	b := newBuilder(objects)
	for _, name := range served {
		b.served[name] = true
	}
	return b.build(pod)
}

func newBuilder(objects *Objects) *builder {
	b := &builder{
		objects: objects, hardware: map[string]*fleetview.Hardware{}, gpuNodes: map[string]*v1alpha1.GPUNode{}, resources: fleetview.Resources{},
		byNode: map[string][]*corev1.Pod{}, served: map[string]bool{}, views: map[string]*nodeView{},
	}
	b.read()
	return b
}

// build returns the values for a pod, one after another for several.
func (b *builder) build(pod *corev1.Pod) why.Input {
	b.pod, b.others = pod, nil
	b.in = why.Input{Notes: slices.Clone(b.objects.Notes), Pod: b.waiting()}
	b.rules = rulesOf(pod, b.in.Pod.Requests[0])
	if !b.objects.Now.IsZero() {
		b.in.Now = b.objects.Now.Unix()
	}
	for i := range b.objects.Nodes {
		b.node(&b.objects.Nodes[i])
	}
	return b.in
}

// read reads the GPUNodes, and sorts the pods by their node.
func (b *builder) read() {
	reader := fleetview.NewReader()
	for i := range b.objects.GPUNodes {
		g := &b.objects.GPUNodes[i]
		h := reader.Read(g)
		b.hardware[g.Name], b.gpuNodes[g.Name] = h, g
		b.resources.Add(h)
	}
	for name, err := range b.objects.Unreadable {
		b.hardware[name] = fleetview.Unreadable(name, err)
	}
	for i := range b.objects.Pods {
		if p := &b.objects.Pods[i]; p.Spec.NodeName != "" && !ended(p) {
			b.byNode[p.Spec.NodeName] = append(b.byNode[p.Spec.NodeName], p)
		}
	}
	for _, list := range b.byNode {
		slices.SortFunc(list, func(x, y *corev1.Pod) int {
			return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
		})
	}
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// waiting returns the pod as a value.
func (b *builder) waiting() why.Pod {
	p := b.pod
	made := why.Pod{
		Name: p.Namespace + "/" + p.Name, Requests: b.requests(p), Others: map[string]int64{string(corev1.ResourcePods): 1}, Stops: stops(p), Scheduler: schedulerOf(p),
		NotJudged: notJudged(p), Message: messageOf(p), Reserved: reservedOf(p),
	}
	if !p.CreationTimestamp.IsZero() {
		made.Created = p.CreationTimestamp.Unix()
	}
	for name, quantity := range helpers.PodRequests(p, helpers.PodResourcesOptions{}) {
		if b.isOther(name) && quantity.Sign() > 0 {
			made.Others[string(name)] = quantity.Value()
		}
	}
	b.mistaken(&made)
	made.Most = b.most()
	for name := range made.Others {
		b.others = append(b.others, name)
	}
	slices.Sort(b.others)
	made.Unseen = b.unseen(made.Scheduler)
	return made
}

// mistaken takes requests for resources that no node has, and whose names begin as those of GPUs do, as requests for GPUs.
func (b *builder) mistaken(made *why.Pod) {
	var names []string
	for name := range made.Others {
		vendor, _, ok := strings.Cut(name, "/")
		if ok && b.vendor(vendor) && !b.onSomeNode(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		shape := fleet.Shape{Resource: name, GPUs: int32(min(made.Others[name], fleet.MaxGPUs))}
		if first := &made.Requests[0]; first.GPUs == 0 {
			shape.CPU, shape.Memory = first.CPU, first.Memory
			*first = shape
		} else {
			made.Requests = append(made.Requests, shape)
		}
		delete(made.Others, name)
	}
}

// vendor tells whether names of GPUs begin with a domain.
func (b *builder) vendor(domain string) bool {
	if domain == "nvidia.com" || domain == "amd.com" {
		return true
	}
	for name := range b.resources {
		if strings.HasPrefix(name, domain+"/") {
			return true
		}
	}
	return false
}

func (b *builder) onSomeNode(name string) bool {
	return slices.ContainsFunc(b.objects.Nodes, func(n corev1.Node) bool {
		quantity := n.Status.Allocatable[corev1.ResourceName(name)]
		return quantity.Sign() > 0
	})
}

// most returns the largest number of devices of one resource of GPUs that one container requests.
func (b *builder) most() (most int64) {
	for _, containers := range [][]corev1.Container{b.pod.Spec.InitContainers, b.pod.Spec.Containers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Limits {
				if b.resources.Is(name) {
					most = max(most, quantity.Value())
				}
			}
		}
	}
	return most
}

// requests returns the shapes of a pod, without devices that claims serve.
func (b *builder) requests(p *corev1.Pod) []fleet.Shape {
	shapes := b.resources.Requests(p)
	kept := slices.DeleteFunc(slices.Clone(shapes), func(s fleet.Shape) bool { return b.served[s.Resource] })
	if len(kept) == 0 {
		return []fleet.Shape{{CPU: shapes[0].CPU, Memory: shapes[0].Memory}}
	}
	kept[0].CPU, kept[0].Memory = shapes[0].CPU, shapes[0].Memory
	return kept
}

// isOther tells whether a resource is neither CPU nor memory nor one of GPUs.
func (b *builder) isOther(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && !b.resources.Is(name) && !b.served[string(name)]
}

// view returns a node without what concerns the pod.
func (b *builder) view(n *corev1.Node) *nodeView {
	if v := b.views[n.Name]; v != nil {
		return v
	}
	v := &nodeView{pods: b.byNode[n.Name]}
	input := fleetview.Input{Node: n, Hardware: b.hardware[n.Name], Resources: b.resources}
	for _, p := range v.pods {
		requests := b.resources.Requests(p)
		input.CPU += requests[0].CPU
		input.Memory += requests[0].Memory
		input.Pods = append(input.Pods, fleetview.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Requests: requests})
		v.requests = append(v.requests, requests)
	}
	v.View = fleetview.Build(input)
	b.views[n.Name] = v
	return v
}

// node adds a node and the pods on it.
func (b *builder) node(n *corev1.Node) {
	view := b.view(n)
	made := why.Node{Node: view.Node, Note: view.Note, Silent: view.Silent(), Others: map[string]why.Other{}, Blocks: b.rules.blocks(n, b.gpuNodes[n.Name], &view.Node)}
	made.Kind = kindOf(&view.Node)
	if n.Labels[fleetview.ProductLabel] == "" && !b.rules.shape.Models.Allows(made.Model) {
		made.Model = "" // Pods select it by the label alone, so accepting what the GPUNode calls it does not help.
	}
	made.Layouts = b.layouts(n.Name)
	for _, name := range b.others {
		quantity := n.Status.Allocatable[corev1.ResourceName(name)]
		made.Others[name] = why.Other{All: quantity.Value(), Free: quantity.Value()}
	}
	for i, p := range view.pods {
		h := b.holder(p, view.requests[i])
		for name, amount := range h.Others {
			o := made.Others[name]
			made.Others[name] = why.Other{All: o.All, Free: max(0, o.Free-amount)}
		}
		for _, held := range view.HeldBy(string(p.UID)) {
			h.Devices = append(h.Devices, why.Devices{Entry: held.Entry, Count: held.Devices})
		}
		b.in.Holders = append(b.in.Holders, h)
	}
	b.in.Nodes = append(b.in.Nodes, made)
}

// holder returns a pod on a node, without its devices.
func (b *builder) holder(p *corev1.Pod, requests []fleet.Shape) why.Holder {
	h := why.Holder{
		Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, CPU: requests[0].CPU, Memory: requests[0].Memory, Traffic: requests[0].Traffic,
		Since: p.CreationTimestamp.Unix(), Ending: p.DeletionTimestamp != nil, Permanent: permanent(p), Owner: ownerOf(p), Claims: b.claims(p),
		Others: map[string]int64{string(corev1.ResourcePods): 1},
	}
	if p.Spec.Priority != nil {
		h.Priority = *p.Spec.Priority
	}
	if key, ok := gangplan.KeyOf(p); ok {
		h.Gang = gangKey(key)
	}
	if len(b.others) == 1 {
		return h
	}
	all := helpers.PodRequests(p, helpers.PodResourcesOptions{})
	for _, name := range b.others {
		if quantity, ok := all[corev1.ResourceName(name)]; ok && quantity.Sign() > 0 {
			h.Others[name] = quantity.Value()
		}
	}
	return h
}

// claims tells whether a pod has devices through claims, or may have.
func (b *builder) claims(p *corev1.Pod) bool {
	if len(p.Spec.ResourceClaims) > 0 {
		return true
	}
	return len(b.served) > 0 && slices.ContainsFunc(b.resources.Requests(p), func(s fleet.Shape) bool { return b.served[s.Resource] })
}

// permanent tells whether a pod would be created again on the same node.
func permanent(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || slices.ContainsFunc(p.OwnerReferences, func(o metav1Owner) bool { return o.Kind == "DaemonSet" || o.Kind == "Node" })
}

// ownerOf returns what created a pod, as "Job train".
func ownerOf(p *corev1.Pod) string {
	for i := range p.OwnerReferences {
		if o := &p.OwnerReferences[i]; o.Controller != nil && *o.Controller {
			return o.Kind + " " + o.Name
		}
	}
	return ""
}

// kindOf describes nodes like one.
func kindOf(n *fleet.Node) string {
	physical := map[uint8]bool{}
	for i := range n.GPUs {
		physical[n.GPUs[i].Physical] = true
	}
	if len(physical) == 0 {
		return fmt.Sprintf("%d cores, no GPU", n.CPU/1000)
	}
	return fmt.Sprintf("%d x %s", len(physical), cmp.Or(n.Model, "GPU"))
}

// migPrefix begins the names of resources of MIG devices where each profile has its own.
const migPrefix = "nvidia.com/mig-"

// layouts lists the MIG devices that GPUs of a node could have, for the MIG devices that the pod requests.
func (b *builder) layouts(node string) []why.Layout {
	g := b.gpuNodes[node]
	if g == nil {
		return nil
	}
	var list []why.Layout
	for _, name := range b.wanted() {
		wanted, ok := strings.CutPrefix(name, migPrefix)
		if !ok {
			continue
		}
		for i := range g.Status.Devices {
			d := &g.Status.Devices[i]
			for _, p := range d.MIGProfiles {
				if resourceName(p.Name) == wanted && !d.Excluded && i < fleet.MaxGPUs {
					list = append(list, why.Layout{Physical: uint8(i), Resource: name, Devices: max(1, min(p.Max, len(p.Starts)))})
				}
			}
		}
	}
	return list
}

// resourceName is a profile as it is part of a resource's name.
func resourceName(profile string) string { return strings.ReplaceAll(profile, "+", ".") }

// wanted lists the resources of GPUs that the pod requests.
func (b *builder) wanted() []string {
	var names []string
	for _, s := range b.in.Pod.Requests {
		if s.GPUs > 0 && !slices.Contains(names, s.Resource) {
			names = append(names, s.Resource)
		}
	}
	return names
}
