package trace

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// replicaMark stands between the UUID and the number of a replica in the kubelet's ID of a device.
const replicaMark = "::"

// visibleDevices is the variable of the envvar and volume-mounts strategies, and
// visibleMounts where the latter mounts one path per device.
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	visibleMounts  = "/var/run/nvidia-container-devices"
	// givenDevices begins the variables that Berth's own answer carries, one per
	// resource: GPU[/MIG][#share], comma between them.
	givenDevices = "BERTH_DEVICES"
)

// The fields of an answer and of a container that name devices.
const (
	fieldEnv         = "env " + visibleDevices
	fieldGiven       = "env " + givenDevices
	fieldMounts      = "mounts"
	fieldCDI         = "cdi_devices"
	fieldAnnotations = "annotations"
	fieldNodes       = "device nodes"
)

// statement is what one source says a container holds.
type statement struct {
	source   Source
	resource string
	ids      []string
	set      []gpu.UUID
	// vague is true for a statement that names a device by an index that no source resolves: it is
	// evidence, and is not compared.
	vague bool
}

// statementOf returns the statement of a source that names devices by IDs.
func (j *joiner) statementOf(source Source, resource string, ids []string) statement {
	made := statement{source: source, resource: resource, ids: sortedTexts(ids)}
	for _, id := range made.ids {
		devices, known := j.catalogue.resolve(id)
		made.vague = made.vague || !known
		made.set = append(made.set, devices...)
	}
	made.set = j.catalogue.sorted(made.set)
	return made
}

func sortedTexts(texts []string) []string {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	return slices.Compact(texts)
}

// isGPU tells whether a resource is one of GPUs: by its vendor, or by what its devices are called.
func isGPU(resource string, ids []string) bool {
	return strings.HasPrefix(resource, "nvidia.com/") || slices.ContainsFunc(ids, isUUID)
}

// statements are all that is said of a container's devices, in the order of the sources,
// the meaningful silences included.
func (j *joiner) statements(pod *podState, c *containerState) []statement {
	said := j.assignmentStatements(c)
	for _, answer := range c.answers {
		said = append(said, j.answerStatements(answer)...)
	}
	facts := c.current()
	for _, fact := range facts {
		said = append(said, j.containerStatements(fact, c.answers)...)
	}
	said = append(said, j.silences(pod, c, said)...)
	slices.SortStableFunc(said, func(a, b statement) int { return CompareSources(a.source, b.source) })
	return said
}

// assignmentStatements has one statement per source, over all of its GPU resources.
func (j *joiner) assignmentStatements(c *containerState) []statement {
	var said []statement
	ids := map[Source][]string{}
	resource := map[Source]string{}
	var order []Source
	for _, fact := range c.assignments {
		if !isGPU(fact.Resource, fact.IDs) {
			continue
		}
		if _, seen := ids[fact.Source]; !seen {
			order = append(order, fact.Source)
			resource[fact.Source] = fact.Resource
		}
		ids[fact.Source] = append(ids[fact.Source], fact.IDs...)
	}
	for _, source := range order {
		said = append(said, j.statementOf(source, resource[source], ids[source]))
	}
	return said
}

// answerStatements reads the device plugin's answer in each way that names devices.
func (j *joiner) answerStatements(answer AnswerFact) []statement {
	var said []statement
	say := func(field string, ids []string) {
		if len(ids) > 0 {
			source := answer.Source
			source.Field = field
			said = append(said, j.statementOf(source, answer.Resource, ids))
		}
	}
	say(fieldEnv, visible(answer.Env))
	say(fieldGiven, given(answer.Env))
	say(fieldMounts, mounted(answer.Mounts))
	say(fieldCDI, cdiDevices(answer.CDINames))
	for _, annotation := range answer.Annotations {
		if names := strings.Split(annotation.Value, ","); strings.Contains(annotation.Value, "=") {
			say(fieldAnnotations, cdiDevices(names))
		}
	}
	if found := j.catalogue.ofNodes(answer.Nodes); found.any {
		source := answer.Source
		source.Field = fieldNodes
		said = append(said, statement{source: source, resource: answer.Resource, set: found.devices, vague: found.vague})
	}
	return said
}

// visible is the list in NVIDIA_VISIBLE_DEVICES; nil where the value names no
// device. The last value counts, as in a process.
func visible(env []EnvVar) []string {
	value := ""
	for _, variable := range env {
		if variable.Name == visibleDevices {
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

// given are the devices of Berth's own variables, each as the kubelet's ID for it.
func given(env []EnvVar) []string {
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

func mounted(mounts []Mount) []string {
	var ids []string
	for _, mount := range mounts {
		id, ok := strings.CutPrefix(mount.Path, visibleMounts+"/")
		if ok && !strings.Contains(id, "/") {
			ids = append(ids, id)
		}
	}
	return ids
}

// cdiDevices leaves out names that bring no device: all, and the daemons of MPS.
func cdiDevices(names []string) []string {
	var ids []string
	for _, name := range names {
		if id := cdiDevice(name); id != "all" && mpsDaemon(id) == "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// containerStatements reads what a container has. It has to speak where the plugin's
// answer asked the runtime for something: to have nothing is a statement then.
func (j *joiner) containerStatements(fact ContainerFact, answers []AnswerFact) []statement {
	var said []statement
	say := func(field string, read func([]EnvVar) []string) {
		wanted := slices.ContainsFunc(answers, func(a AnswerFact) bool { return len(read(a.Env)) > 0 })
		if ids := read(fact.Env); !fact.NoEnv && (len(ids) > 0 || wanted) {
			source := fact.Source
			source.Field = field
			said = append(said, j.statementOf(source, "", ids))
		}
	}
	say(fieldEnv, visible)
	say(fieldGiven, given)
	if fact.NoNodes || fact.Privileged {
		return said
	}
	injected := false
	for _, answer := range answers {
		injected = injected || len(answer.CDINames) > 0 || len(answer.Nodes) > 0 || len(answer.Annotations) > 0
	}
	if found := j.catalogue.ofNodes(fact.Nodes); found.any || injected {
		source := fact.Source
		source.Field = fieldNodes
		said = append(said, statement{source: source, set: found.devices, vague: found.vague})
	}
	return said
}

// silences are the statements of sources that were read to the end, would have to name
// the container's devices, and do not.
func (j *joiner) silences(pod *podState, c *containerState, said []statement) []statement {
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
		if spoke[source.Kind] || !j.mustSpeak(source, pod, c, spoke) {
			continue
		}
		silent = append(silent, statement{source: source})
	}
	return silent
}

// mustSpeak tells whether a source's silence about a live container that others give
// devices to means that it has none. Only the kubelet's own places bind the agent's:
// an orphan is in the ledger and not in the checkpoint. The agent names one container
// of a pod for a device that several of them use in turn.
func (j *joiner) mustSpeak(source Source, pod *podState, c *containerState, spoke map[Kind]bool) bool {
	switch source.Kind {
	case Checkpoint:
		return j.isLocal(pod)
	case PodResources:
		return pod.lists(PodResources, c.name)
	case Ledger:
		return spoke[Checkpoint] && !pod.assigned(source) // the checkpoint has only this node's pods
	case GPUNode:
		return (spoke[Checkpoint] || spoke[PodStatus]) && pod.isOn(gpuNodeHost(source)) && !pod.assigned(source)
	}
	return false
}

// gpuNodeHost is the Kubernetes node that a GPUNode source describes; its path ends in the name.
func gpuNodeHost(source Source) string {
	return source.Path[strings.LastIndexByte(source.Path, '/')+1:]
}
