package trace

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// replicaMark separates the UUID from the replica number in the kubelet's device ID.
const replicaMark = "::"

const (
	// berthVariables is how the names of Berth's own variables begin; givenDevices of those in its answer, one per resource:
	// GPU[/MIG][#share], separated by commas.
	berthVariables = "BERTH_"
	givenDevices   = berthVariables + "DEVICES"
)

// The fields of an answer and of a container that name devices.
const (
	fieldEnv         = "env "
	fieldGiven       = fieldEnv + givenDevices
	fieldMounts      = "mounts"
	fieldCDI         = "cdi_devices"
	fieldAnnotations = "annotations"
	fieldNodes       = "device nodes"
)

// side is who gave a container the devices of a statement.
type side int

// The sides. A container shows what it has, and not who gave it.
const (
	byPlugin side = iota
	byClaim
	byContainer
)

// statement is what one source says that a container holds.
type statement struct {
	source Source
	by     side
	// vendor is the vendor whose devices alone the statement is about; "" if it is about all devices of the container.
	vendor string
	ids    []string
	set    []gpu.UUID
	// resources are those of the devices, where the source names them.
	resources map[gpu.UUID]string
	// vague is true for a statement that names a device by an index that no source can resolve. It is evidence, but it
	// is not compared.
	vague bool
}

// statementOf returns the statement of a source that names devices of one resource by IDs, of the given vendor if they are
// indices.
func (j *joiner) statementOf(source Source, resource, vendor string, ids []string) statement {
	made := statement{source: source}
	j.extend(&made, resource, vendor, ids)
	return made
}

// extend adds devices of a further resource to a statement.
func (j *joiner) extend(made *statement, resource, vendor string, ids []string) {
	for _, id := range sortedTexts(ids) {
		devices, known := j.catalogue.resolve(vendor, id)
		made.vague = made.vague || !known
		made.set = append(made.set, devices...)
		made.name(resource, devices)
	}
	made.ids = sortedTexts(append(made.ids, ids...))
	made.set = j.catalogue.sorted(made.set)
}

// name records the resource of devices.
func (s *statement) name(resource string, devices []gpu.UUID) {
	if s.resources == nil {
		s.resources = map[gpu.UUID]string{}
	}
	for _, id := range devices {
		s.resources[id] = resource
	}
}

// scope returns the vendor whose devices an answer for a resource is about: that of the resource's domain or of all devices;
// "" if it is unknown.
func (j *joiner) scope(resource string, set []gpu.UUID) string {
	vendor := j.vendors.ofResource(resource)
	if vendor == "" && len(set) > 0 {
		vendor = j.catalogue.vendor(set[0])
		if slices.ContainsFunc(set, func(id gpu.UUID) bool { return j.catalogue.vendor(id) != vendor }) {
			return ""
		}
	}
	return vendor
}

func sortedTexts(texts []string) []string {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	return slices.Compact(texts)
}

// statements returns all statements about a container's devices in the order of the sources, including implied ones.
func (j *joiner) statements(pod *podState, c *containerState, uses []usage) []statement {
	claimed := j.claimStatements(pod, c, uses)
	byClaims := slices.ContainsFunc(claimed, func(s statement) bool { return len(s.set) > 0 })
	said := j.assignmentStatements(c)
	for _, answer := range c.answers {
		said = append(said, j.answerStatements(answer)...)
	}
	facts := c.current()
	for _, fact := range facts {
		said = append(said, j.containerStatements(fact, c.answers, byClaims)...)
	}
	said = append(said, j.impliedStatements(pod, c, said)...)
	said = append(said, claimed...)
	slices.SortStableFunc(said, func(a, b statement) int { return compareSources(a.source, b.source) })
	return said
}

// assignmentStatements returns one statement per source, over all of its GPU resources.
func (j *joiner) assignmentStatements(c *containerState) []statement {
	var said []statement
	for _, fact := range c.assignments {
		if !j.catalogue.isGPU(fact.Resource, fact.IDs) {
			continue
		}
		at := slices.IndexFunc(said, func(one statement) bool { return one.source == fact.Source })
		if at < 0 {
			at = len(said)
			said = append(said, statement{source: fact.Source})
		}
		j.extend(&said[at], fact.Resource, j.vendors.ofResource(fact.Resource), fact.IDs)
	}
	return said
}

// answerStatements returns the devices in the device plugin's answer, in each form that names devices.
func (j *joiner) answerStatements(answer AnswerFact) []statement {
	var said []statement
	say := func(field, vendor string, ids []string) {
		if len(ids) > 0 {
			source := answer.Source
			source.Field = field
			made := j.statementOf(source, answer.Resource, vendor, ids)
			made.vendor = cmp.Or(vendor, j.scope(answer.Resource, made.set))
			said = append(said, made)
		}
	}
	for _, t := range j.vendors {
		for _, name := range t.VisibleDevices {
			say(fieldEnv+name, t.Name, visible(name, answer.Env))
		}
	}
	of := j.vendors.ofResource(answer.Resource)
	say(fieldGiven, of, berthDevices(answer.Env))
	for _, t := range j.vendors {
		say(fieldMounts, t.Name, mounted(t, answer.Mounts))
	}
	say(fieldCDI, of, cdiDevices(answer.CDINames))
	for _, annotation := range answer.Annotations {
		if names := strings.Split(annotation.Value, ","); strings.Contains(annotation.Value, "=") {
			say(fieldAnnotations, of, cdiDevices(names))
		}
	}
	if found := j.catalogue.ofNodes(answer.Nodes); found.any {
		source := answer.Source
		source.Field = fieldNodes
		made := statement{source: source, vendor: j.scope(answer.Resource, found.devices), set: found.devices, vague: found.vague}
		made.name(answer.Resource, found.devices)
		said = append(said, made)
	}
	return said
}

// visible returns the list in the variable, such as NVIDIA_VISIBLE_DEVICES, or nil if the value names no device. As in a process, the last
// assignment applies.
func visible(name string, env []EnvVar) []string {
	value := ""
	for _, variable := range env {
		if variable.Name == name {
			value = variable.Value
		}
	}
	switch value {
	case "", "void", "none", "all":
		return nil
	}
	if strings.HasPrefix(value, "/") {
		return nil
	}
	return strings.Split(value, ",")
}

// berthDevices returns the devices in Berth's own variables, as kubelet device IDs.
func berthDevices(env []EnvVar) []string {
	var ids []string
	for _, variable := range env {
		if !strings.HasPrefix(variable.Name, givenDevices) || variable.Value == "" {
			continue
		}
		for key := range strings.SplitSeq(variable.Value, ",") {
			device, _, _ := strings.Cut(key, "#")
			ids = append(ids, device[strings.LastIndexByte(device, '/')+1:])
		}
	}
	return ids
}

// cdiDevices removes names without a device: all, and the MPS daemons.
func cdiDevices(names []string) []string {
	var ids []string
	for _, name := range names {
		if id := cdiDevice(name); id != "all" && mpsDaemon(id) == "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// containerStatements returns what a container has. If the plugin's answer requested something from the runtime, or claims have devices
// of the container, having nothing is a statement too.
func (j *joiner) containerStatements(fact ContainerFact, answers []AnswerFact, byClaims bool) []statement {
	var said []statement
	say := func(field, vendor string, read func([]EnvVar) []string) {
		wanted := slices.ContainsFunc(answers, func(a AnswerFact) bool { return len(read(a.Env)) > 0 })
		if ids := read(fact.Env); !fact.NoEnv && (len(ids) > 0 || wanted) {
			source := fact.Source
			source.Field = field
			made := j.statementOf(source, "", vendor, ids)
			made.by, made.vendor = byContainer, vendor
			said = append(said, made)
		}
	}
	for _, t := range j.vendors {
		for _, name := range t.VisibleDevices {
			say(fieldEnv+name, t.Name, func(env []EnvVar) []string { return visible(name, env) })
		}
	}
	say(fieldGiven, "", berthDevices)
	if fact.NoNodes || fact.Privileged {
		return said
	}
	injected := byClaims
	for _, answer := range answers {
		injected = injected || len(answer.CDINames) > 0 || len(answer.Nodes) > 0 || len(answer.Annotations) > 0
	}
	if found := j.catalogue.ofNodes(fact.Nodes); found.any || injected {
		source := fact.Source
		source.Field = fieldNodes
		said = append(said, statement{source: source, by: byContainer, set: found.devices, vague: found.vague})
	}
	return said
}

// impliedStatements returns "nothing" for the sources that were read completely, would have to list the container's
// devices, and do not.
func (j *joiner) impliedStatements(pod *podState, c *containerState, said []statement) []statement {
	spoke := map[Kind]bool{}
	for _, one := range said {
		if len(one.set) > 0 || len(one.ids) > 0 {
			spoke[one.source.Kind] = true
		}
	}
	if len(spoke) == 0 || pod.done() || !c.live() {
		return nil
	}
	var silent []statement
	for _, source := range j.evidence.Read {
		if spoke[source.Kind] || !j.mustList(source, pod, c, spoke) {
			continue
		}
		silent = append(silent, statement{source: source})
	}
	return silent
}

// mustList reports whether a source that does not list a live container, to which others assign devices, states by this
// that the container has none. Only the kubelet's own sources bind the agent's: an orphan is in the ledger and not in
// the checkpoint. If several containers of a pod use a device in turn, the agent names only one of them.
func (j *joiner) mustList(source Source, pod *podState, c *containerState, spoke map[Kind]bool) bool {
	switch source.Kind {
	case Checkpoint:
		return j.isLocal(pod)
	case PodResources:
		return pod.lists(PodResources, c.name)
	case Ledger:
		return spoke[Checkpoint] && !pod.assigned(source) // the checkpoint has only this node's pods
	case GPUNode:
		return (spoke[Checkpoint] || spoke[PodStatus]) && pod.isOn(gpuNodeHost(source)) && !pod.assigned(source) && !j.withheld(source)
	}
	return false
}

// withheld reports whether holders of a source were left out.
func (j *joiner) withheld(source Source) bool { return slices.Contains(j.evidence.Withheld, source) }

// gpuNodeHost returns the Kubernetes node that a GPUNode source describes; its path ends with the name.
func gpuNodeHost(source Source) string {
	return source.Path[strings.LastIndexByte(source.Path, '/')+1:]
}
