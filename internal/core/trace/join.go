package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// joiner holds the evidence in canonical order, and indexes of it.
type joiner struct {
	vendors   Vendors
	evidence  Evidence
	directory *directory
	catalogue *catalogue
	pods      map[Ref]*podState
	claims    map[ClaimRef]*claimState
	trace     *Trace
}

// podState collects what the sources say about one pod.
type podState struct {
	ref        Ref
	facts      []PodFact
	waits      []WaitFact
	containers map[string]*containerState
}

func (p *podState) done() bool {
	return slices.ContainsFunc(p.facts, func(f PodFact) bool { return f.Phase == "Succeeded" || f.Phase == "Failed" })
}

// lists reports whether a kind of source lists the container, with or without devices.
func (p *podState) lists(kind Kind, container string) bool {
	return slices.ContainsFunc(p.facts, func(f PodFact) bool {
		return f.Source.Kind == kind && slices.ContainsFunc(f.Containers, func(c PodContainer) bool { return c.Name == container })
	})
}

// isOn reports whether a source places the pod on that Kubernetes node.
func (p *podState) isOn(host string) bool {
	return slices.ContainsFunc(p.facts, func(f PodFact) bool { return f.Node == host })
}

// assigned reports whether a source assigns a device to any container of the pod.
func (p *podState) assigned(source Source) bool {
	for _, c := range p.containers {
		if slices.ContainsFunc(c.assignments, func(f AssignmentFact) bool { return f.Source == source }) {
			return true
		}
	}
	return false
}

// isLocal reports whether the pod runs on the node whose own files were read. For a pod of another node, the absence of
// a statement in those files means nothing.
func (j *joiner) isLocal(p *podState) bool {
	if j.evidence.Host != "" && p.isOn(j.evidence.Host) {
		return true
	}
	local := func(kind Kind) bool {
		switch kind {
		case Directory, Checkpoint, AllocResp, ClaimRecord, PodResources, OCISpec, Process:
			return true
		}
		return false
	}
	if slices.ContainsFunc(p.facts, func(f PodFact) bool { return local(f.Source.Kind) }) {
		return true
	}
	for _, c := range p.containers {
		if len(c.facts) > 0 || len(c.answers) > 0 || slices.ContainsFunc(c.assignments,
			func(f AssignmentFact) bool { return local(f.Source.Kind) }) {
			return true
		}
	}
	return false
}

// containerState collects what the sources say about one container.
type containerState struct {
	name        string
	specs       []PodContainer
	specSources []Source
	assignments []AssignmentFact
	answers     []AnswerFact
	facts       []ContainerFact
}

// current removes the facts about earlier runs of the container, if one is running.
func (c *containerState) current() []ContainerFact {
	alive := map[string]bool{}
	for _, fact := range c.facts {
		alive[fact.ID] = alive[fact.ID] || len(fact.PIDs) > 0
	}
	var living []ContainerFact
	for _, fact := range c.facts {
		if alive[fact.ID] {
			living = append(living, fact)
		}
	}
	if len(living) > 0 {
		return living
	}
	return c.facts
}

func (c *containerState) live() bool {
	return slices.ContainsFunc(c.facts, func(f ContainerFact) bool { return len(f.PIDs) > 0 || f.State == StateRunning }) ||
		slices.ContainsFunc(c.specs, func(s PodContainer) bool { return s.State == StateRunning })
}

// Join returns the whole picture. The order of the evidence does not matter, and the evidence is not changed.
func Join(vendors Vendors, evidence Evidence) *Trace {
	canonical := canonicalise(evidence)
	j := &joiner{
		vendors:   vendors,
		evidence:  canonical,
		catalogue: newCatalogue(vendors, canonical.Devices, canonical.CDI),
		pods:      map[Ref]*podState{},
		trace:     &Trace{Read: canonical.Read, Unread: canonical.Unread, Processes: canonical.Processes},
	}
	j.directory = newDirectory(&j.evidence, j)
	j.gather()
	j.gatherClaims()
	for _, id := range j.catalogue.uuids {
		j.trace.Devices = append(j.trace.Devices, j.device(id))
	}
	for _, ref := range j.order() {
		j.trace.Pods = append(j.trace.Pods, j.pod(j.pods[ref]))
	}
	for _, state := range j.claimOrder() {
		j.trace.Claims = append(j.trace.Claims, j.claim(state))
	}
	j.checkDevices()
	for i, ref := range j.order() {
		j.checkExistence(&j.trace.Pods[i], j.isLocal(j.pods[ref]))
	}
	j.checkHolders()
	j.addSharers()
	sortDisagreements(j.trace.Disagreements)
	return j.trace
}

// canonicalise sorts and deduplicates every list, so that the result depends only on the set of facts.
func canonicalise(evidence Evidence) Evidence {
	return Evidence{
		Host:        evidence.Host,
		Read:        canonicalList(evidence.Read, func(s Source) Source { return s }),
		Partial:     canonicalList(evidence.Partial, func(f Partial) Source { return f.Source }),
		Withheld:    canonicalList(evidence.Withheld, func(s Source) Source { return s }),
		Unread:      canonicalList(evidence.Unread, func(f Unread) Source { return f.Source }),
		Pods:        canonicalList(evidence.Pods, func(f PodFact) Source { return f.Source }),
		Waits:       canonicalList(evidence.Waits, func(f WaitFact) Source { return f.Source }),
		Assignments: canonicalList(evidence.Assignments, func(f AssignmentFact) Source { return f.Source }),
		Answers:     canonicalList(evidence.Answers, func(f AnswerFact) Source { return f.Source }),
		Claims:      canonicalList(evidence.Claims, func(f ClaimFact) Source { return f.Source }),
		Uses:        canonicalList(evidence.Uses, func(f UseFact) Source { return f.Source }),
		Containers:  canonicalList(evidence.Containers, func(f ContainerFact) Source { return f.Source }),
		Processes:   canonicalList(evidence.Processes, func(f ProcessFact) Source { return f.Source }),
		CDI:         canonicalList(evidence.CDI, func(f CDIFact) Source { return f.Source }),
		Devices:     canonicalList(evidence.Devices, func(f DeviceFact) Source { return f.Source }),
	}
}

func canonicalList[T any](list []T, source func(T) Source) []T {
	type keyed struct {
		key  string
		item T
	}
	items := make([]keyed, len(list))
	for i, item := range list {
		items[i] = keyed{fmt.Sprintf("%#v", item), item}
	}
	slices.SortFunc(items, func(a, b keyed) int {
		if c := compareSources(source(a.item), source(b.item)); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
	items = slices.CompactFunc(items, func(a, b keyed) bool { return a.key == b.key })
	var out []T
	for _, item := range items {
		out = append(out, item.item)
	}
	return out
}

// gather assigns every fact to its pod and container.
func (j *joiner) gather() {
	for _, fact := range j.evidence.Pods {
		pod := j.podOf(fact.Ref)
		pod.facts = append(pod.facts, fact)
		for _, spec := range fact.Containers {
			c := pod.container(spec.Name)
			c.specs = append(c.specs, spec)
			c.specSources = append(c.specSources, fact.Source)
		}
	}
	for _, fact := range j.evidence.Waits {
		pod := j.podOf(fact.Pod)
		pod.waits = append(pod.waits, fact)
	}
	for _, fact := range j.evidence.Assignments {
		c := j.podOf(fact.Pod).container(fact.Container)
		c.assignments = append(c.assignments, fact)
	}
	for _, fact := range j.evidence.Answers {
		c := j.podOf(fact.Pod).container(fact.Container)
		c.answers = append(c.answers, fact)
	}
	for _, fact := range j.evidence.Containers {
		c := j.podOf(fact.Pod).container(fact.Container)
		c.facts = append(c.facts, fact)
	}
}

func (j *joiner) podOf(ref Ref) *podState {
	ref = j.directory.resolve(ref)
	pod := j.pods[ref]
	if pod == nil {
		pod = &podState{ref: ref, containers: map[string]*containerState{}}
		j.pods[ref] = pod
	}
	return pod
}

func (p *podState) container(name string) *containerState {
	c := p.containers[name]
	if c == nil {
		c = &containerState{name: name}
		p.containers[name] = c
	}
	return c
}

func (j *joiner) order() []Ref {
	refs := make([]Ref, 0, len(j.pods))
	for ref := range j.pods {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

// pod joins one pod and records disagreements of its sources.
func (j *joiner) pod(state *podState) Pod {
	pod := Pod{Namespace: state.ref.Namespace, Name: state.ref.Name, UID: state.ref.UID, Containers: []Container{}}
	var hosts []Fact
	for _, fact := range state.facts {
		pod.Sources = append(pod.Sources, fact.Source)
		if fact.Phase != "" && pod.Phase == "" {
			pod.Phase = fact.Phase
		}
		if fact.Node != "" {
			hosts = addFact(hosts, "node", fact.Node, fact.Source)
		}
	}
	pod.Sources = sortSources(pod.Sources)
	if len(hosts) > 0 {
		pod.Node = &Fact{Value: hosts[0].Value, Sources: hosts[0].Sources}
	}
	if len(hosts) > 1 {
		j.disagree(Disagreement{Code: NodeDiffers, Pod: state.ref, Statements: hosts})
	}
	slices.SortStableFunc(state.waits, func(a, b WaitFact) int {
		return cmp.Or(compareSources(a.Source, b.Source), cmp.Compare(a.Order, b.Order))
	})
	for _, wait := range state.waits {
		pod.Waiting = addFact(pod.Waiting, wait.Name, wait.Text, wait.Source)
	}
	for _, c := range state.ordered() {
		if container, ok := j.container(state, c); ok {
			pod.Containers = append(pod.Containers, container)
		}
	}
	return pod
}

// ordered sorts containers as the pod's spec does: init containers and sidecars first, in the order of the spec, then
// the others; containers that are not in the spec come last, by name.
func (p *podState) ordered() []*containerState {
	var out []*containerState
	seen := map[string]bool{}
	for _, fact := range p.facts {
		if fact.Source.Kind != PodSpec {
			continue
		}
		for _, spec := range fact.Containers {
			if !seen[spec.Name] {
				seen[spec.Name] = true
				out = append(out, p.containers[spec.Name])
			}
		}
	}
	var rest []*containerState
	for name, c := range p.containers {
		if !seen[name] {
			rest = append(rest, c)
		}
	}
	slices.SortFunc(rest, func(a, b *containerState) int { return strings.Compare(a.name, b.name) })
	return append(out, rest...)
}

// container joins one container; ok is false if no source says anything about it that concerns devices.
func (j *joiner) container(pod *podState, state *containerState) (Container, bool) {
	container := Container{Name: state.name, Devices: []Device{}}
	for i, spec := range state.specs {
		if container.Role == "" {
			container.Role = spec.Role
		}
		if container.State == "" {
			container.State = spec.State
		}
		for _, ask := range spec.Asked {
			container.Asked = addFact(container.Asked, ask.Resource, strconv.FormatInt(ask.Count, 10), state.specSources[i])
		}
	}
	facts := state.current()
	for _, fact := range facts {
		if container.ID == "" {
			container.ID = fact.ID
		}
		container.PIDs = append(container.PIDs, fact.PIDs...)
	}
	slices.Sort(container.PIDs)
	container.PIDs = slices.Compact(container.PIDs)
	if len(container.PIDs) > 0 {
		container.State = StateRunning
	}
	uses := j.usages(pod, state)
	said := j.statements(pod, state, uses)
	if len(uses) == 0 {
		j.compareStatements(pod, state, said)
	} else {
		j.compareSides(pod, state, uses, said)
	}
	j.compareCounts(pod, state, container.Asked)
	j.describe(&container, state, facts, said, uses)
	j.shares(pod, &container, state, facts)
	relevant := len(container.Devices) > 0 || len(container.Asked) > 0 || len(container.PIDs) > 0 || len(state.specs) > 0
	return container, relevant
}

// device returns a GPU or MIG device with all that is known of it.
func (j *joiner) device(id gpu.UUID) Device {
	device := Device{UUID: id, Parent: j.catalogue.parent(id)}
	for _, fact := range j.catalogue.facts[id] {
		device.Sources = append(device.Sources, fact.Source)
		add := func(name, value string) {
			if value != "" {
				device.Facts = addFact(device.Facts, name, value, fact.Source)
			}
		}
		if j.catalogue.several {
			add(FactVendor, j.catalogue.vendor(id))
		}
		add(FactIndex, fact.Index)
		add(FactProduct, fact.Product)
		add(FactPCI, fact.PCI)
		add(FactNUMA, strconv.Itoa(fact.NUMANode))
		if fact.Minor >= 0 {
			add(FactMinor, strconv.Itoa(fact.Minor))
		}
		add(FactProfile, fact.Profile)
		add(FactPlacement, fact.Instance.text())
		add(FactSharing, fact.Sharing.text())
		add(FactDraining, fact.Sharing.Draining)
		add(FactParent, string(fact.Parent))
		add(FactArchitecture, fact.Architecture)
		add(FactCapability, fact.Capability)
		if fact.MemoryBytes > 0 {
			add(FactMemory, strconv.FormatUint(fact.MemoryBytes, 10))
		}
		add(FactHealth, fact.Health)
		add(FactHost, fact.Host)
	}
	device.Sources = sortSources(device.Sources)
	return device
}

// The names of a device's facts.
const (
	// FactVendor is the name of the vendor; it is given where the sources list GPUs of several vendors, because each vendor's
	// indices begin at 0.
	FactVendor       = "vendor"
	FactIndex        = "index"
	FactProduct      = "product"
	FactPCI          = "pciBusID"
	FactNUMA         = "numaNode"
	FactMinor        = "minor"
	FactProfile      = "profile"
	FactParent       = "parent"
	FactArchitecture = "architecture"
	FactCapability   = "computeCapability"
	FactMemory       = "memoryBytes"
	FactHealth       = "health"
	FactHost         = "node"
	// FactPlacement is the placement of a MIG device on its GPU.
	FactPlacement = "placement"
	// FactSharing is how the device is shared and what is enforced.
	FactSharing = "sharing"
	// FactDraining is the reason why the device is not allocated to new pods.
	FactDraining = "draining"
	// FactShare lists the replicas that a container has.
	FactShare = "share"
	// FactAdvisory are limits that the container has set for itself.
	FactAdvisory = "advisory"
	// FactSharedWith are the other pods that use the same device.
	FactSharedWith = "sharedWith"
	// FactNeighbours are the pods that use other MIG devices of the same GPU.
	FactNeighbours = "neighbours"
)

// addFact adds a source to the fact of that name and value, or adds a new fact.
func addFact(facts []Fact, name, value string, source Source) []Fact {
	for i := range facts {
		if facts[i].Name == name && facts[i].Value == value {
			facts[i].Sources = sortSources(append(facts[i].Sources, source))
			return facts
		}
	}
	return append(facts, Fact{Name: name, Value: value, Sources: []Source{source}})
}
