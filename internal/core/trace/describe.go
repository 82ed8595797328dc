package trace

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// describe adds what a container was given, each item with its sources.
func (j *joiner) describe(container *Container, state *containerState, facts []ContainerFact, said []statement, uses []usage) {
	container.Devices = j.held(said)
	j.describeClaims(container, uses)
	for _, answer := range state.answers {
		j.describeAnswer(container, answer)
	}
	nodes := j.nodesOfNames(container.CDINames)
	for _, answer := range state.answers {
		nodes = addNodes(nodes, answer.Nodes, answer.Source)
	}
	for _, fact := range facts {
		for _, variable := range fact.Env {
			if j.vendors.RelevantEnv(variable.Name) {
				container.Env = addFact(container.Env, variable.Name, variable.Value, fact.Source)
			}
		}
		for _, mount := range fact.Mounts {
			container.Mounts = addFact(container.Mounts, mount.Path, mount.HostPath, fact.Source)
		}
		nodes = addNodes(nodes, j.vendors.gpuNodes(fact.Nodes), fact.Source)
	}
	nodes = mergePaths(nodes)
	j.compareNodes(container, state, nodes)
	j.assign(container, nodes)
	sortFacts(container.CDINames, container.Env, container.Mounts, container.Annotations)
}

func (j *joiner) describeAnswer(container *Container, answer AnswerFact) {
	for _, variable := range answer.Env {
		container.Env = addFact(container.Env, variable.Name, variable.Value, answer.Source)
	}
	for _, mount := range answer.Mounts {
		container.Mounts = addFact(container.Mounts, mount.Path, mount.HostPath, answer.Source)
	}
	names := slices.Clone(answer.CDINames)
	for _, annotation := range answer.Annotations {
		container.Annotations = addFact(container.Annotations, annotation.Name, annotation.Value, answer.Source)
		if strings.Contains(annotation.Value, "=") {
			names = append(names, strings.Split(annotation.Value, ",")...)
		}
	}
	for _, name := range sortedTexts(names) {
		container.CDINames = addFact(container.CDINames, "", name, answer.Source)
		for _, spec := range j.catalogue.cdi[name] {
			container.CDINames = addFact(container.CDINames, "", name, spec.Source)
		}
	}
}

// nodesOfNames returns the device nodes that the CDI specs define for the names.
func (j *joiner) nodesOfNames(names []Fact) []NodeFact {
	var nodes []NodeFact
	for _, name := range names {
		for _, spec := range j.catalogue.cdi[name.Value] {
			nodes = addNodes(nodes, spec.Nodes, spec.Source)
		}
	}
	return nodes
}

// held returns the devices that any source assigns to the container.
func (j *joiner) held(said []statement) []Device {
	var all []gpu.UUID
	for _, one := range said {
		all = append(all, one.set...)
	}
	var devices []Device
	for _, id := range j.catalogue.sorted(all) {
		if !j.catalogue.isDevice(string(id)) {
			continue // a node of no known GPU, which is reported where statements are compared
		}
		device := j.device(id)
		device.Sources = nil
		for _, one := range said {
			if !slices.Contains(one.set, id) {
				continue
			}
			device.Sources = append(device.Sources, one.source)
			if device.Resource == "" {
				device.Resource = one.resources[id]
			}
			device.IDs = append(device.IDs, otherNames(id, one.ids)...)
		}
		device.Sources = sortSources(device.Sources)
		device.IDs = sortedTexts(device.IDs)
		devices = append(devices, device)
	}
	return devices
}

// otherNames returns the replica IDs among a source's names for a device.
func otherNames(id gpu.UUID, ids []string) []string {
	var names []string
	for _, name := range ids {
		if base, _, replica := strings.Cut(name, replicaMark); replica && base == string(id) {
			names = append(names, name)
		}
	}
	return names
}

// assign moves nodes and CDI names to the devices that they belong to; the rest stays with the container.
func (j *joiner) assign(container *Container, nodes []NodeFact) {
	for _, node := range nodes {
		owner := j.owner(container.Devices, node.Node)
		if owner == nil {
			container.Nodes = append(container.Nodes, node)
			continue
		}
		for _, fact := range j.catalogue.facts[owner.UUID] {
			if slices.Contains(fact.Nodes, node.Node) {
				node.Sources = sortSources(append(node.Sources, fact.Source))
			}
		}
		owner.Nodes = append(owner.Nodes, node)
	}
	for i := range container.Devices {
		device := &container.Devices[i]
		for _, name := range container.CDINames {
			named, known := j.catalogue.resolveCDI(name.Value)
			if (known && slices.Contains(named, device.UUID)) || mpsDaemon(cdiDevice(name.Value)) == device.UUID {
				device.CDINames = append(device.CDINames, name)
			}
		}
		sortNodes(device.Nodes)
	}
	sortNodes(container.Nodes)
}

// owner returns the device that a node belongs to: its own GPU, or the MIG device on it.
func (j *joiner) owner(devices []Device, node Node) *Device {
	id, primary, ok := j.catalogue.ofNode(node)
	if !ok {
		return nil
	}
	for i := range devices {
		if devices[i].UUID == id || (primary && devices[i].Parent == id) {
			return &devices[i]
		}
	}
	return nil
}

// gpuNodes removes nodes such as /dev/null.
func (v Vendors) gpuNodes(nodes []Node) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !v.RelevantNode(n) })
}

func addNodes(nodes []NodeFact, more []Node, source Source) []NodeFact {
	for _, node := range more {
		i := slices.IndexFunc(nodes, func(n NodeFact) bool { return n.Node == node })
		if i < 0 {
			nodes = append(nodes, NodeFact{Node: node, Sources: []Source{source}})
			continue
		}
		nodes[i].Sources = sortSources(append(nodes[i].Sources, source))
	}
	return nodes
}

// mergePaths merges a node that a source names by path alone with the numbered node of that path.
func mergePaths(nodes []NodeFact) []NodeFact {
	var merged []NodeFact
	for _, node := range nodes {
		if node.Major >= 0 {
			merged = append(merged, node)
		}
	}
	for _, bare := range nodes {
		if bare.Major >= 0 {
			continue
		}
		found := false
		for i := range merged {
			if merged[i].Path == bare.Path {
				merged[i].Sources = sortSources(append(merged[i].Sources, bare.Sources...))
				found = true
			}
		}
		if !found {
			merged = append(merged, bare)
		}
	}
	return merged
}

func sortNodes(nodes []NodeFact) {
	slices.SortFunc(nodes, func(a, b NodeFact) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
}

func sortFacts(lists ...[]Fact) {
	for _, facts := range lists {
		slices.SortStableFunc(facts, func(a, b Fact) int {
			if c := strings.Compare(a.Name, b.Name); c != 0 {
				return c
			}
			return strings.Compare(a.Value, b.Value)
		})
	}
}
