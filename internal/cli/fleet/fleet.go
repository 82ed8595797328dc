package fleet

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

// The properties by which GPUs are grouped.
const (
	ByNode      = "node"
	ByModel     = "model"
	ByNamespace = "namespace"
	ByResource  = "resource"
)

// Properties returns the properties by which GPUs are grouped.
func Properties() []string { return []string{ByNode, ByModel, ByNamespace, ByResource} }

// Request is how much of a resource the pods of a namespace request.
type Request struct {
	Namespace string
	Resource  string
	Count     int64
}

// Input is what is counted.
type Input struct {
	Nodes []v1alpha1.GPUNode
	// Requests are those of the pods that have not ended; nil where pods were not read.
	Requests []Request
}

// Summarize counts everything.
func Summarize(in *Input) *v1alpha1.GPUFleet {
	out := &v1alpha1.GPUFleet{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUFleet), Nodes: len(in.Nodes), Problems: problems(in.Nodes)}
	for i := range in.Nodes {
		for k := range in.Nodes[i].Status.Devices {
			count(&out.GPUCounts, &in.Nodes[i].Status.Devices[k])
		}
	}
	out.Models = Groups(in, ByModel)
	out.Resources = Groups(in, ByResource)
	out.Namespaces = Groups(in, ByNamespace)
	most(out.Models, func(g *v1alpha1.GPUGroup) int { return g.GPUs })
	most(out.Resources, func(g *v1alpha1.GPUGroup) int { return g.Devices.Total })
	most(out.Namespaces, func(g *v1alpha1.GPUGroup) int { return g.Held })
	return out
}

// most sorts groups by a number, the largest first, and then by name.
func most(groups []v1alpha1.GPUGroup, number func(*v1alpha1.GPUGroup) int) {
	slices.SortFunc(groups, func(a, b v1alpha1.GPUGroup) int {
		return cmp.Or(number(&b)-number(&a), strings.Compare(a.Name, b.Name))
	})
}

// Groups counts the GPUs by one of the properties, in the order of their names.
func Groups(in *Input, by string) []v1alpha1.GPUGroup {
	g := grouping{groups: map[string]*v1alpha1.GPUGroup{}, last: map[string]member{}}
	for i := range in.Nodes {
		node := &in.Nodes[i]
		if by == ByNode {
			g.group(node.Name).Nodes, g.last[node.Name] = 1, member{node: i + 1}
		}
		known := slices.ContainsFunc(node.Status.Devices, Advertised)
		for k := range node.Status.Devices {
			device := &node.Status.Devices[k]
			for _, unit := range unitsOf(device, known) {
				at := member{i + 1, k + 1}
				switch by {
				case ByNode:
					g.add(node.Name, at, device, &unit)
				case ByModel:
					g.add(device.Product, at, device, &unit)
				case ByResource:
					g.add(unit.resource, at, device, &unit)
				case ByNamespace:
					for namespace, held := range unit.namespaces() {
						g.add(namespace, at, device, &deviceUnit{total: held, held: held})
					}
				}
			}
		}
	}
	g.request(in.Requests, by)
	out := make([]v1alpha1.GPUGroup, 0, len(g.groups))
	for _, group := range g.groups {
		out = append(out, *group)
	}
	slices.SortFunc(out, func(a, b v1alpha1.GPUGroup) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// member is the position of a node and of a GPU on it, from 1.
type member struct {
	node int
	gpu  int
}

// grouping collects groups. Units come in the order of nodes and GPUs, so the last member of a group says whether a node or GPU is new
// to it.
type grouping struct {
	groups map[string]*v1alpha1.GPUGroup
	last   map[string]member
}

func (g *grouping) group(name string) *v1alpha1.GPUGroup {
	group := g.groups[name]
	if group == nil {
		group = &v1alpha1.GPUGroup{Name: name}
		g.groups[name] = group
	}
	return group
}

// add adds a unit to a group, and its GPU and its node if the group does not have them yet.
func (g *grouping) add(name string, at member, device *v1alpha1.GPUDevice, unit *deviceUnit) {
	group := g.group(name)
	if g.last[name].node != at.node {
		group.Nodes++
	}
	if g.last[name] != at {
		count(&group.GPUCounts, device)
	}
	g.last[name] = at
	group.Devices.Total += unit.total
	group.Devices.Held += unit.held
	group.Devices.Free += unit.free
}

// request adds what pods request: of the resources that devices are advertised as, by namespace or resource.
func (g *grouping) request(requests []Request, by string) {
	if requests == nil || by != ByNamespace && by != ByResource {
		return
	}
	for i := range requests {
		name := requests[i].Resource
		if by == ByNamespace {
			name = requests[i].Namespace
		}
		group := g.group(name)
		if group.Devices.Requested == nil {
			group.Devices.Requested = new(int64)
		}
		*group.Devices.Requested += requests[i].Count
	}
	for _, group := range g.groups {
		if group.Devices.Requested == nil {
			group.Devices.Requested = new(int64)
		}
	}
}

// count counts a GPU as the summary of its GPUNode does.
func count(counts *v1alpha1.GPUCounts, device *v1alpha1.GPUDevice) {
	healthy, held := allocatable(device.Health.State), gpunode.Held(device)
	counts.GPUs++
	if held {
		counts.Held++
	}
	if !healthy {
		counts.Unhealthy++
	}
	if healthy && !held {
		counts.Free++
	}
}

func allocatable(state string) bool { return gpu.State(state).Allocatable() }

// deviceUnit is a GPU without parts, or a MIG device, with its replicas.
type deviceUnit struct {
	resource string
	total    int
	held     int
	free     int
	holders  []v1alpha1.Holder
}

// Advertised tells whether a GPU or a part of it is advertised.
func Advertised(device v1alpha1.GPUDevice) bool {
	return device.Offered != nil || slices.ContainsFunc(device.MIGDevices, func(m v1alpha1.MIGDevice) bool { return m.Offered != nil })
}

// unitsOf returns what containers can be given of a GPU: the GPU, or its MIG devices. On a node of which it is not known what is
// advertised, such as one without an agent, that is every healthy device.
func unitsOf(device *v1alpha1.GPUDevice, known bool) []deviceUnit {
	ok := allocatable(device.Health.State) && !device.Excluded
	if !device.MIGEnabled && len(device.MIGDevices) == 0 {
		return []deviceUnit{unitOf(device.Offered, device.Holders, ok, known)}
	}
	var units []deviceUnit
	for i := range device.MIGDevices {
		part := &device.MIGDevices[i]
		healthy := ok
		if part.Health != nil {
			healthy = allocatable(part.Health.State) && !device.Excluded
		}
		units = append(units, unitOf(part.Offered, part.Holders, healthy, known))
	}
	if len(device.MIGDevices) == 0 || len(device.Holders) > 0 {
		// A GPU in MIG mode without MIG devices is no device, but still a GPU, and its holders still hold it.
		units = append(units, deviceUnit{held: min(len(device.Holders), 1), total: min(len(device.Holders), 1), holders: device.Holders})
	}
	return units
}

// unitOf counts a device with its replicas.
func unitOf(offered *v1alpha1.DeviceOffer, holders []v1alpha1.Holder, healthy, known bool) deviceUnit {
	unit := deviceUnit{total: 1, held: min(len(holders), 1), holders: holders}
	if offered == nil {
		if healthy && !known {
			unit.free = unit.total - unit.held
		}
		return unit
	}
	unit.resource = offered.Resource
	if offered.Replicas > 1 {
		unit.total = offered.Replicas
		unit.held = replicasOf(holders, offered.Replicas)
	}
	if healthy && offered.Draining == "" {
		unit.free = max(0, unit.total-unit.held)
	}
	return unit
}

// replicasOf returns how many replicas are held. A holder that names none holds all of them.
func replicasOf(holders []v1alpha1.Holder, replicas int) int {
	shares := map[int]bool{}
	for i := range holders {
		if holders[i].Share == 0 {
			return replicas
		}
		shares[holders[i].Share] = true
	}
	return len(shares)
}

// namespaces returns how many devices each namespace holds of a unit. Two holders in a namespace hold a device that is not shared once.
func (u *deviceUnit) namespaces() map[string]int {
	if len(u.holders) == 0 {
		return nil
	}
	type share struct {
		namespace string
		number    int
	}
	seen := map[share]bool{}
	held := map[string]int{}
	for i := range u.holders {
		one := share{u.holders[i].Namespace, u.holders[i].Share}
		if !seen[one] {
			seen[one] = true
			held[one.namespace]++
		}
	}
	return held
}

// tally counts causes by their code.
type tally struct {
	found map[string]*v1alpha1.GPUFleetProblem
	last  map[string]member
}

// add counts a cause of a GPU, or of a node.
func (t *tally) add(at member, node, code, message string) {
	one := t.found[code]
	if one == nil {
		one = &v1alpha1.GPUFleetProblem{Code: code, Node: node, Message: message}
		t.found[code] = one
	}
	if node < one.Node {
		one.Node, one.Message = node, message
	}
	if t.last[code].node != at.node {
		one.Nodes++
	}
	if t.last[code] != at && at.gpu > 0 {
		one.GPUs++
	}
	t.last[code] = at
}

// health counts the causes of a GPU or of a part of it.
func (t *tally) health(at member, node string, health *v1alpha1.DeviceHealth) {
	for _, cause := range health.Causes {
		t.add(at, node, cause.Code, cause.Message)
	}
	if len(health.Causes) == 0 && health.State != "" && health.State != string(gpu.Healthy) {
		t.add(at, node, health.State, "")
	}
}

// problems counts the causes of all nodes.
func problems(nodes []v1alpha1.GPUNode) []v1alpha1.GPUFleetProblem {
	t := tally{map[string]*v1alpha1.GPUFleetProblem{}, map[string]member{}}
	for i := range nodes {
		status := &nodes[i].Status
		for k := range status.Devices {
			t.health(member{i + 1, k + 1}, nodes[i].Name, &status.Devices[k].Health)
			for _, part := range status.Devices[k].MIGDevices {
				if part.Health != nil {
					t.health(member{i + 1, k + 1}, nodes[i].Name, part.Health)
				}
			}
		}
		for _, cause := range status.Problems {
			t.add(member{i + 1, 0}, nodes[i].Name, cause.Code, cause.Message)
		}
	}
	out := make([]v1alpha1.GPUFleetProblem, 0, len(t.found))
	for _, one := range t.found {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b v1alpha1.GPUFleetProblem) int {
		return cmp.Or(b.GPUs-a.GPUs, b.Nodes-a.Nodes, strings.Compare(a.Code, b.Code))
	})
	return out
}
