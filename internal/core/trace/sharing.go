package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The names that connect a container to an MPS daemon.
const (
	mpsNames    = "mps-" // prefix of the daemon's name in a CDI spec, before the GPU's UUID
	mpsPipe     = "CUDA_MPS_PIPE_DIRECTORY"
	mpsMemory   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	mpsThreads  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	mpsShm      = "/dev/shm"
	fieldPipe   = "env " + mpsPipe
	gpuUUIDMark = "GPU-" // how the UUIDs of GPUs begin that MPS can share
)

// mpsDaemon returns the GPU of a daemon's name in a CDI spec, or "" for any other name.
func mpsDaemon(id string) gpu.UUID {
	if device, ok := strings.CutPrefix(id, mpsNames); ok && strings.HasPrefix(device, gpuUUIDMark) {
		return gpu.UUID(device)
	}
	return ""
}

// pipesOf returns the GPU of a pipe directory, /mps/UUID/pipe, or "" for another path.
func pipesOf(path string) gpu.UUID {
	rest, ok := strings.CutPrefix(path, "/mps/")
	device, last, is := strings.Cut(rest, "/")
	if !ok || !is || last != "pipe" || !strings.HasPrefix(device, gpuUUIDMark) {
		return ""
	}
	return gpu.UUID(device)
}

// text describes the placement of the instance.
func (i InstanceFact) text() string {
	switch i.Size {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("GI %d, CI %d, memory slice %d", i.GI, i.CI, i.Start)
	}
	return fmt.Sprintf("GI %d, CI %d, memory slices %d-%d", i.GI, i.CI, i.Start, i.Start+i.Size-1)
}

// text describes how the device is shared and what is enforced. Time-slicing limits nothing; with MPS, only the limits
// set on the server are enforced, for each client process separately.
func (s SharingFact) text() string {
	switch s.Mode {
	case "":
		return ""
	case ModeTimeSlicing:
		text := "time-slicing: not limited, not isolated"
		if s.TimeSlice != "" {
			text += ", time slices " + s.TimeSlice
		}
		return text
	case ModeMPS:
		var limits []string
		if s.MPS.PinnedMemoryMiB > 0 {
			limits = append(limits, mebibytes(s.MPS.PinnedMemoryMiB)+" pinned memory")
		}
		if s.MPS.ActiveThreadPercentage > 0 && s.MPS.ActiveThreadPercentage < 100 {
			limits = append(limits, strconv.Itoa(s.MPS.ActiveThreadPercentage)+" % threads")
		}
		text := "MPS: no limit is enforced"
		if len(limits) > 0 {
			text = "MPS: enforced per client process: " + strings.Join(limits, ", ")
		}
		if s.MPS.SingleUser {
			text += "; one user at a time"
		}
		return text
	}
	return s.Mode
}

func mebibytes(n int64) string {
	if n%1024 == 0 {
		return strconv.FormatInt(n/1024, 10) + " GiB"
	}
	return strconv.FormatInt(n, 10) + " MiB"
}

// shares adds to each device which replicas the container has and how they are shared, and checks whether the container
// is connected to the right MPS daemons.
func (j *joiner) shares(pod *podState, container *Container, state *containerState, facts []ContainerFact) {
	expected := j.daemons(container, state)
	for i := range container.Devices {
		device := &container.Devices[i]
		j.shareNumbers(device, state)
		daemon, joined := expected[device.UUID]
		if !joined {
			continue
		}
		if len(factsNamed(device.Facts, FactSharing)) == 0 {
			device.Facts = append(device.Facts, Fact{Name: FactSharing, Value: "MPS: the limits are those of its daemon", Sources: daemon})
		}
		for _, variable := range container.Env {
			if variable.Name == mpsMemory || variable.Name == mpsThreads {
				device.Facts = append(device.Facts, Fact{Name: FactAdvisory,
					Value: variable.Name + "=" + variable.Value, Sources: variable.Sources})
			}
		}
	}
	if pod.done() || len(facts) == 0 || !state.live() {
		return
	}
	j.checkDaemons(pod, container, facts, expected)
}

// shareNumbers adds which replicas of the device the container has.
func (j *joiner) shareNumbers(device *Device, state *containerState) {
	if len(device.IDs) == 0 {
		return
	}
	var sources []Source
	for _, fact := range state.assignments {
		if slices.ContainsFunc(fact.IDs, func(id string) bool { return slices.Contains(device.IDs, id) }) {
			sources = append(sources, fact.Source)
		}
	}
	of := ""
	for _, fact := range j.catalogue.facts[device.UUID] {
		if fact.Sharing.Replicas > 0 && of == "" {
			of = fmt.Sprintf(" of %d", fact.Sharing.Replicas)
			sources = append(sources, fact.Source)
		}
	}
	var numbers []int
	for _, id := range device.IDs {
		if n, ok := replicaNumber(id); ok {
			numbers = append(numbers, n+1)
		}
	}
	slices.Sort(numbers)
	var texts []string
	for _, n := range numbers {
		texts = append(texts, strconv.Itoa(n))
	}
	if len(texts) > 0 {
		device.Facts = append(device.Facts, Fact{Name: FactShare, Value: strings.Join(texts, ", ") + of, Sources: sortSources(sources)})
	}
}

// daemons returns the GPUs to whose MPS daemon the container should be connected, each with the sources: the plugin's
// answer, or a GPUNode in which a device of the container is shared by MPS.
func (j *joiner) daemons(container *Container, state *containerState) map[gpu.UUID][]Source {
	expected := map[gpu.UUID][]Source{}
	add := func(g gpu.UUID, source Source) {
		if g != "" {
			expected[g] = sortSources(append(expected[g], source))
		}
	}
	for _, answer := range state.answers {
		for _, name := range answer.CDINames {
			add(mpsDaemon(cdiDevice(name)), answer.Source)
		}
		for _, annotation := range answer.Annotations {
			for name := range strings.SplitSeq(annotation.Value, ",") {
				if strings.Contains(name, "=") {
					add(mpsDaemon(cdiDevice(name)), answer.Source)
				}
			}
		}
		for _, variable := range answer.Env {
			if variable.Name == mpsPipe {
				add(pipesOf(variable.Value), answer.Source)
			}
		}
	}
	for _, device := range container.Devices {
		for _, fact := range j.catalogue.facts[device.UUID] {
			if fact.Sharing.Mode == ModeMPS && len(device.IDs) > 0 {
				add(device.UUID, fact.Source)
			}
		}
	}
	return expected
}

// checkDaemons compares the daemons that a container should be connected to with those that it is connected to: by its
// environment, and by its mounts if the source has them.
func (j *joiner) checkDaemons(pod *podState, container *Container, facts []ContainerFact, expected map[gpu.UUID][]Source) {
	var gpus []gpu.UUID
	for g := range expected {
		gpus = append(gpus, g)
	}
	for _, g := range j.catalogue.sorted(gpus) {
		var lacks []Fact
		for _, fact := range facts {
			for _, lack := range missing(fact, g) {
				lacks = addFact(lacks, "", lack.Value, lack.Sources[0])
			}
		}
		if len(lacks) > 0 {
			said := Fact{Value: "a replica of " + string(g) + " by MPS", Sources: expected[g]}
			j.disagree(Disagreement{Code: MPSNotJoined, Pod: pod.ref, Container: container.Name, Device: g,
				Statements: append([]Fact{said}, lacks...)})
		}
	}
	held := Fact{}
	for _, device := range container.Devices {
		held.Value = strings.Join(nonEmpty(held.Value, "holds "+string(device.UUID)), ", ")
		held.Sources = sortSources(append(held.Sources, device.Sources...))
	}
	if len(container.Devices) == 0 {
		return
	}
	others := map[gpu.UUID][]Fact{}
	var order []gpu.UUID
	for _, fact := range facts {
		for _, joined := range joins(fact) {
			g := gpu.UUID(joined.Name)
			if slices.ContainsFunc(container.Devices, func(d Device) bool { return d.UUID == g }) {
				continue
			}
			if others[g] == nil {
				order = append(order, g)
			}
			others[g] = addFact(others[g], "", joined.Value, joined.Sources[0])
		}
	}
	for _, g := range j.catalogue.sorted(order) {
		j.disagree(Disagreement{Code: MPSOtherGPU, Pod: pod.ref, Container: container.Name, Device: g,
			Statements: append([]Fact{held}, others[g]...)})
	}
}

// missing returns what a container lacks to be connected to the daemon of a GPU.
func missing(fact ContainerFact, device gpu.UUID) []Fact {
	var lacks []Fact
	source := fact.Source
	if !fact.NoEnv {
		source.Field = fieldPipe
		if value := lastValue(fact.Env, mpsPipe); value == "" {
			lacks = append(lacks, Fact{Value: "no " + mpsPipe, Sources: []Source{source}})
		}
	}
	if fact.Source.Kind != OCISpec {
		return lacks // a source that is a process does not have its mounts
	}
	source.Field = fieldMounts
	pipes := "/mps/" + string(device) + "/pipe"
	for _, wanted := range [...]struct{ path, text string }{{pipes, "no mount of the pipes at " + pipes},
		{mpsShm, "no mount of its shared memory at " + mpsShm}} {
		if !slices.ContainsFunc(fact.Mounts, func(m Mount) bool { return m.Path == wanted.path }) {
			lacks = append(lacks, Fact{Value: wanted.text, Sources: []Source{source}})
		}
	}
	return lacks
}

// joins returns the GPUs to whose daemons a container is connected, each as a Fact with the GPU as its name.
func joins(fact ContainerFact) []Fact {
	var found []Fact
	source := fact.Source
	if device := pipesOf(lastValue(fact.Env, mpsPipe)); device != "" {
		source.Field = fieldPipe
		found = append(found, Fact{Name: string(device), Value: mpsPipe + "=" + lastValue(fact.Env, mpsPipe), Sources: []Source{source}})
	}
	source.Field = fieldMounts
	for _, mount := range fact.Mounts {
		if pipesOf(mount.Path) == "" {
			continue
		}
		for _, device := range [...]gpu.UUID{pipesOf(mount.Path), gpuOfPath(mount.HostPath)} {
			if device != "" {
				found = append(found, Fact{Name: string(device), Value: mount.HostPath + " mounted at " + mount.Path,
					Sources: []Source{source}})
			}
		}
	}
	return found
}

// gpuOfPath returns the first element of a path that is a GPU's UUID.
func gpuOfPath(path string) gpu.UUID {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, gpuUUIDMark) {
			return gpu.UUID(part)
		}
	}
	return ""
}

func lastValue(env []EnvVar, name string) string {
	value := ""
	for _, variable := range env {
		if variable.Name == name {
			value = variable.Value
		}
	}
	return value
}

// addSharers adds to each device of a container which other pods use it, and which pods use other MIG devices of its
// GPU. Terminated containers use nothing.
func (j *joiner) addSharers() {
	type user struct {
		pod     Ref
		device  *Device
		sources []Source
	}
	var users []user
	for i := range j.trace.Pods {
		pod := &j.trace.Pods[i]
		for k := range pod.Containers {
			container := &pod.Containers[k]
			if pod.Done() || container.State == StateTerminated {
				continue
			}
			for d := range container.Devices {
				users = append(users, user{pod.Ref(), &container.Devices[d], container.Devices[d].Sources})
			}
		}
	}
	byGPU := map[gpu.UUID][]user{}
	for _, one := range users {
		device := gpuOf(one.device)
		byGPU[device] = append(byGPU[device], one)
	}
	for _, one := range users {
		same, beside := Fact{Name: FactSharedWith}, Fact{Name: FactNeighbours}
		for _, other := range byGPU[gpuOf(one.device)] {
			if other.pod == one.pod {
				continue
			}
			fact, text := &same, other.pod.String()
			switch {
			case other.device.UUID == one.device.UUID && sharedWith(one.device, other.device):
			case other.device.UUID != one.device.UUID && other.device.Parent != "" && one.device.Parent != "":
				fact = &beside
			default:
				continue // not shared, or a GPU and a part of it: a conflict, which checkHolders reports
			}
			if !slices.Contains(strings.Split(fact.Value, ", "), text) {
				fact.Value = strings.Join(nonEmpty(fact.Value, text), ", ")
			}
			fact.Sources = sortSources(append(slices.Clone(fact.Sources), other.sources...))
		}
		for _, fact := range [...]Fact{same, beside} {
			if fact.Value != "" {
				one.device.Facts = append(one.device.Facts, fact)
			}
		}
	}
}

// sharedWith reports whether a device is shared with the other holder of it: by replicas, or by a claim of both.
func sharedWith(device, other *Device) bool {
	return len(device.IDs) > 0 || len(factsNamed(device.Facts, FactSharing)) > 0 || sharesClaim(device.Claims, other.Claims)
}

// gpuOf returns the GPU of a device: the device itself or its parent.
func gpuOf(device *Device) gpu.UUID {
	if device.Parent != "" {
		return device.Parent
	}
	return device.UUID
}
