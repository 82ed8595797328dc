package trace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func (j *joiner) disagree(d Disagreement) {
	d.Message = d.message()
	j.trace.Disagreements = append(j.trace.Disagreements, d)
}

// Nothing is the value of a statement that a container holds no device.
const Nothing = "nothing"

// compareStatements reports sources that assign different devices to one container.
func (j *joiner) compareStatements(pod *podState, c *containerState, said []statement) {
	vendors := j.vendorsOf(said)
	for _, vendor := range vendors {
		var groups []Fact
		for _, one := range said {
			if one.vague || one.vendor != "" && one.vendor != vendor {
				continue
			}
			set := one.set
			if len(vendors) > 1 {
				set = slices.DeleteFunc(slices.Clone(set), func(id gpu.UUID) bool {
					of := j.catalogue.vendor(id)
					return of != "" && of != vendor
				})
			}
			groups = addFact(groups, "", setText(set), one.source)
		}
		if len(groups) > 1 {
			j.disagree(Disagreement{Code: DevicesDiffer, Pod: pod.ref, Container: c.name, Statements: groups})
		}
	}
}

// vendorsOf returns the vendors of the devices that statements are about, sorted; at least one, which may be "".
func (j *joiner) vendorsOf(said []statement) []string {
	names := map[string]bool{}
	for _, one := range said {
		names[one.vendor] = true
		for _, id := range one.set {
			names[j.catalogue.vendor(id)] = true
		}
	}
	if len(names) > 1 {
		delete(names, "")
	}
	return slices.Sorted(maps.Keys(names))
}

func setText(set []gpu.UUID) string {
	if len(set) == 0 {
		return Nothing
	}
	return strings.Join(texts(set), ", ")
}

func texts(set []gpu.UUID) []string {
	out := make([]string, len(set))
	for i, id := range set {
		out[i] = string(id)
	}
	return out
}

// compareCounts reports containers that hold more or fewer devices than they requested.
func (j *joiner) compareCounts(pod *podState, c *containerState, asked []Fact) {
	for _, ask := range asked {
		held := []Fact{{Value: ask.Value + " requested", Sources: ask.Sources}}
		differs := false
		ids := map[Source][]string{}
		var order []Source
		for _, fact := range c.assignments {
			if fact.Resource != ask.Name {
				continue
			}
			if ids[fact.Source] == nil {
				order = append(order, fact.Source)
			}
			ids[fact.Source] = append(ids[fact.Source], fact.IDs...)
		}
		for _, source := range order {
			count := strconv.Itoa(len(sortedTexts(ids[source])))
			differs = differs || count != ask.Value
			held = addFact(held, "", count+" held", source)
		}
		if differs {
			j.disagree(Disagreement{Code: CountDiffers, Pod: pod.ref, Container: c.name, Statements: held})
		}
	}
}

// compareNodes reports device nodes to which two sources assign different numbers, and CDI names that no spec defines
// although specs were read.
func (j *joiner) compareNodes(container *Container, state *containerState, nodes []NodeFact) {
	ref := Ref{}
	if len(state.answers) > 0 {
		ref = j.directory.resolve(state.answers[0].Pod)
	} else if len(state.facts) > 0 {
		ref = j.directory.resolve(state.facts[0].Pod)
	}
	numbers := map[string][]Fact{}
	var paths []string
	for _, node := range nodes {
		if node.Major < 0 {
			continue
		}
		if numbers[node.Path] == nil {
			paths = append(paths, node.Path)
		}
		for _, source := range node.Sources {
			numbers[node.Path] = addFact(numbers[node.Path], "", NodeText(node.Node), source)
		}
	}
	slices.Sort(paths)
	for _, path := range paths {
		if len(numbers[path]) > 1 {
			j.disagree(Disagreement{Code: DeviceNodeDiffers, Pod: ref, Container: state.name, Statements: numbers[path]})
		}
	}
	for _, source := range j.evidence.Read {
		if source.Kind != CDISpec {
			continue
		}
		for _, name := range container.CDINames {
			if len(j.catalogue.cdi[name.Value]) == 0 {
				j.disagree(Disagreement{Code: CDINameUnknown, Pod: ref, Container: state.name, Statements: []Fact{
					{Value: name.Value, Sources: name.Sources},
					{Value: "no device of that name", Sources: []Source{source}},
				}})
			}
		}
		break // one source is enough: either all specs were read, or none
	}
}

// checkDevices reports devices that two sources describe differently, and CDI names with the node of another GPU.
func (j *joiner) checkDevices() {
	for i := range j.trace.Devices {
		device := &j.trace.Devices[i]
		for _, name := range [...]string{FactIndex, FactProduct, FactPCI, FactNUMA, FactMinor, FactProfile,
			FactPlacement, FactParent, FactMemory, FactHost} {
			if values := factsNamed(device.Facts, name); len(values) > 1 {
				j.disagree(Disagreement{Code: FactDiffers, Device: device.UUID, Statements: values})
			}
		}
	}
	names := make([]string, 0, len(j.catalogue.cdi))
	for name := range j.catalogue.cdi {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		j.checkName(name)
	}
}

func factsNamed(facts []Fact, name string) []Fact {
	var named []Fact
	for _, fact := range facts {
		if fact.Name == name {
			named = append(named, fact)
		}
	}
	return named
}

// checkName compares the device node that a CDI spec defines for a name with the GPU that the name identifies.
func (j *joiner) checkName(name string) {
	meant, known := j.catalogue.resolveCDI(name)
	if !known || len(meant) != 1 || len(j.catalogue.facts[meant[0]]) == 0 {
		return
	}
	device := cmp.Or(j.catalogue.parent(meant[0]), meant[0])
	fact := j.catalogue.facts[meant[0]][0]
	for _, spec := range j.catalogue.cdi[name] {
		for _, node := range spec.Nodes {
			owner, primary, ok := j.catalogue.ofNode(node)
			if !primary || (ok && owner == device) {
				continue
			}
			means := cmp.Or(string(owner), "no known GPU")
			j.disagree(Disagreement{Code: DeviceNodeDiffers, Device: meant[0], Statements: []Fact{
				{Value: fmt.Sprintf("%s is %s, which is %s", name, NodeText(node), means), Sources: []Source{spec.Source}},
				{Value: fmt.Sprintf("%s is %s", meant[0], j.vendors.node(j.catalogue.vendor(meant[0]), fact)), Sources: []Source{fact.Source}},
			}})
		}
	}
}

// checkExistence looks up the devices of the pod's containers in every inventory that covers the pod's node and was
// read completely.
func (j *joiner) checkExistence(pod *Pod, local bool) {
	for _, container := range pod.Containers {
		if pod.Done() || container.State == StateTerminated {
			continue
		}
		for _, device := range container.Devices {
			for _, source := range j.evidence.Read {
				covers := (source.Kind == Hardware && local && !j.ofOther(source, device)) || (source.Kind == GPUNode && pod.Node != nil &&
					gpuNodeHost(source) == pod.Node.Value)
				if covers && !slices.ContainsFunc(j.catalogue.facts[device.UUID], func(f DeviceFact) bool { return f.Source == source }) {
					j.disagree(Disagreement{
						Code: DeviceUnknown, Pod: pod.Ref(), Container: container.Name, Device: device.UUID,
						Statements: []Fact{
							{Value: string(device.UUID), Sources: device.Sources},
							{Value: "no such device", Sources: []Source{source}},
						},
					})
				}
			}
		}
	}
}

// ofOther reports whether a source lists only GPUs of another vendor than the device's.
func (j *joiner) ofOther(source Source, device Device) bool {
	vendor := cmp.Or(j.catalogue.vendor(device.UUID), j.vendors.ofResource(device.Resource))
	return vendor != "" && slices.ContainsFunc(j.evidence.Partial, func(p Partial) bool { return p.Source == source && p.Vendor != vendor })
}

// hold is what one container holds of a device, the device itself or replicas of it, with the sources.
type hold struct {
	pod       Ref
	container string
	keys      []gpu.DeviceKey
	claims    []Fact
	sources   []Source
}

// checkHolders reports devices that two pods hold at the same time without sharing them. Terminated containers hold
// nothing.
func (j *joiner) checkHolders() {
	holders := map[gpu.UUID][]hold{}
	var order []gpu.UUID
	for i := range j.trace.Pods {
		pod := &j.trace.Pods[i]
		for _, container := range pod.Containers {
			if pod.Done() || container.State == StateTerminated {
				continue
			}
			for _, device := range container.Devices {
				if device.AdminAccess {
					continue
				}
				if holders[device.UUID] == nil {
					order = append(order, device.UUID)
				}
				holders[device.UUID] = append(holders[device.UUID], hold{pod.Ref(), container.Name, device.Keys(), device.Claims, device.Sources})
			}
		}
	}
	for _, id := range j.catalogue.sorted(order) {
		var statements []Fact
		for _, one := range holders[id] {
			if slices.ContainsFunc(holders[id], func(other hold) bool { return conflicts(one, other) }) {
				value := fmt.Sprintf("held by %s, container %s", one.pod, one.container)
				statements = append(statements, Fact{Value: value, Sources: one.sources})
			}
		}
		if len(statements) > 1 {
			j.disagree(Disagreement{Code: TwoHolders, Device: id, Statements: statements})
		}
	}
}

func conflicts(a, b hold) bool {
	return a.pod != b.pod && !sharesClaim(a.claims, b.claims) && slices.ContainsFunc(a.keys, func(key gpu.DeviceKey) bool { return slices.ContainsFunc(b.keys, key.Overlaps) })
}

// sortDisagreements sorts by severity, then by pod, container, device and statements.
func sortDisagreements(list []Disagreement) {
	order := [...]Code{TwoHolders, DevicesDiffer, DeviceUnknown, MPSOtherGPU, MPSNotJoined, CountDiffers, NodeDiffers,
		DeviceNodeDiffers, CDINameUnknown, FactDiffers}
	slices.SortStableFunc(list, func(a, b Disagreement) int {
		return cmp.Or(slices.Index(order[:], a.Code)-slices.Index(order[:], b.Code),
			compareRefs(a.Pod, b.Pod), strings.Compare(a.Container, b.Container), strings.Compare(string(a.Device), string(b.Device)),
			strings.Compare(a.sentence(), b.sentence()))
	})
}

// sentence returns the disagreement in one sentence: what it concerns, and the statements with their sources.
func (d *Disagreement) sentence() string {
	parts := make([]string, len(d.Statements))
	for i, statement := range d.Statements {
		parts[i] = SourcesText(statement.Sources) + ": " + statement.Value
	}
	return d.Message + ": " + strings.Join(parts, "; ")
}

// message returns what the disagreement concerns and what it is, without the statements.
func (d *Disagreement) message() string {
	container := fmt.Sprintf("pod %s, container %s", d.Pod, d.Container)
	switch d.Code {
	case DevicesDiffer:
		return container + ": the sources give it different devices"
	case CountDiffers:
		return container + ": it does not hold what it requested"
	case TwoHolders:
		return fmt.Sprintf("%s has more than one holder", d.Device)
	case NodeDiffers:
		return fmt.Sprintf("pod %s: the sources place it on different nodes", d.Pod)
	case DeviceUnknown:
		return container + ": it was given a device that does not exist"
	case FactDiffers:
		return fmt.Sprintf("%s: the sources differ in its %s", d.Device, d.Statements[0].Name)
	case DeviceNodeDiffers:
		if d.Device != "" {
			return fmt.Sprintf("%s: the CDI spec opens another GPU", d.Device)
		}
		return container + ": one device node has different numbers"
	case MPSNotJoined:
		return fmt.Sprintf("%s: it shares %s by MPS and is not connected to its daemon, so no limit is enforced", container, d.Device)
	case MPSOtherGPU:
		return fmt.Sprintf("%s: it is connected to the MPS daemon of %s, which it does not hold", container, d.Device)
	case CDINameUnknown:
		return container + ": its CDI name is in no CDI spec, so it cannot be restarted"
	}
	return string(d.Code)
}

// SourcesText lists the kinds of sources, with the field where it is known, without duplicates.
func SourcesText(sources []Source) string {
	var texts []string
	for _, source := range sources {
		text := string(source.Kind)
		if source.Field != "" {
			text += " (" + source.Field + ")"
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ", ")
}
