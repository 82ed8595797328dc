package ledger

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// PodState is whether a pod can still use the devices that the kubelet's checkpoint lists for it.
type PodState int

// The states. A pod ends once; a UID is never reused.
const (
	PodUnknown PodState = iota
	PodLiving
	PodEnded
)

// PodFacts is what is known of a pod without a query.
type PodFacts struct {
	State PodState
	// Namespace and Name are empty when they are not known.
	Namespace string
	Name      string
	// Containers are in the order in which the kubelet allocates; nil when they are not known.
	Containers []PodContainer
	// Unstarted is true when neither a reading of the cgroups within the last second nor an earlier one found any of
	// the pod: the kubelet has not finished its admission, or has rejected it.
	Unstarted bool
}

// MayHaveEnded reports whether a holding is that of a pod which is not known yet, with no running container: a kubelet's checkpoint also
// lists pods that have ended. A later Reconcile releases the holding, or shows that the pod lives.
func (l *Ledger) MayHaveEnded(h Holding) bool {
	return h.Holder.Kind == gpu.HolderPod && h.Holder.PodUID != "" && len(h.Live) == 0 && l.deps.facts(h.Holder.PodUID).State == PodUnknown
}

// PodContainer is a container of a pod's specification.
type PodContainer struct {
	Name string
	// Init is true for an init container that is no sidecar: its devices pass to the
	// containers after it.
	Init bool
	// Devices is the number of devices that it requests, by resource.
	Devices map[string]int
}

// Question is whether the kubelet still has a device for a pod that its checkpoint lists.
type Question struct {
	PodUID string
	// Namespace and Pod are empty when they are not known.
	Namespace string
	Pod       string
	// Containers are those that the checkpoint lists with the device, All those that it lists with any device
	// of the resource, both sorted.
	Containers []string
	All        []string
	Resource   string
	Key        gpu.DeviceKey
}

// entry is the checkpoint's entry of one device for one pod.
type entry struct {
	pod        string
	resource   string
	containers []string // with the device, sorted
	all        []string // with any device of the resource, sorted
	facts      PodFacts
	// dropped is true when a query showed that the kubelet no longer has the device for the pod.
	dropped bool
}

// holders identifies an entry: its pod and the containers.
func (x *entry) holders() []string { return append([]string{x.pod}, x.containers...) }

// evidence is what is known of a device that an Allocate names although the ledger has it for a pod, while no process
// uses the device.
type evidence struct {
	// readable is false when the checkpoint could not be read: the kubelet's assignments are unknown.
	readable bool
	entries  []entry
	// offered is true when the kubelet has offered the device as free since it was last granted. It never offers a
	// device that passes from an init container to the next one.
	offered bool
	// passed are the pod and the containers that had entries when the device was last granted as one that
	// passes on; empty when it never was.
	passed []string
}

// objection returns the entry because of which the device must not be granted, or nil. The table is in the package
// comment.
func (e *evidence) objection() *entry {
	if !e.readable {
		return nil
	}
	for i := range e.entries {
		x := &e.entries[i]
		if x.facts.State != PodEnded && !x.dropped && !e.passesOn(x) {
			return x
		}
	}
	return nil
}

// passesOn reports whether the kubelet may be passing the device from an init container to a later container of the
// same pod, which it does with a bare Allocate. That requires a later container that requests the resource and has none
// of it yet, and occurs once per container.
//
// The kubelet admits pods one after the other and lists all containers of one before the next. So for a pod with such a
// later container that was never started, an Allocate is either its own or comes after its rejection; in both cases the
// device is free, whether or not the kubelet has offered it.
func (e *evidence) passesOn(x *entry) bool {
	if !x.facts.Unstarted && (e.offered || slices.Equal(e.passed, x.holders())) {
		return false
	}
	last := -1
	for i, c := range x.facts.Containers {
		if slices.Contains(x.containers, c.Name) {
			if !c.Init {
				return false
			}
			last = i
		}
	}
	if last < 0 {
		return false
	}
	return slices.ContainsFunc(x.facts.Containers[last+1:], func(c PodContainer) bool {
		return c.Devices[x.resource] > 0 && !slices.Contains(x.all, c.Name)
	})
}

// passing are the holders from which the device passes on; nil when it does not.
func (e *evidence) passing() []string {
	for i := range e.entries {
		x := &e.entries[i]
		if e.readable && x.facts.State != PodEnded && !x.dropped && e.passesOn(x) {
			return x.holders()
		}
	}
	return nil
}

// collectEvidence sorts the checkpoint's entries about the keys. The result has an element for each key that has an
// entry.
func collectEvidence(assignments []Assignment, keys []gpu.DeviceKey, facts func(uid string) PodFacts) map[gpu.DeviceKey][]entry {
	found := map[gpu.DeviceKey][]entry{}
	for _, key := range keys {
		for _, a := range assignments {
			if !slices.Contains(a.Keys, key) {
				continue
			}
			entries := found[key]
			i := slices.IndexFunc(entries, func(x entry) bool { return x.pod == a.PodUID && x.resource == a.Resource })
			if i < 0 {
				entries = append(entries, entry{pod: a.PodUID, resource: a.Resource, facts: facts(a.PodUID)})
				i = len(entries) - 1
			}
			entries[i].containers = union(entries[i].containers, a.Container)
			found[key] = entries
		}
	}
	for _, entries := range found {
		for i := range entries {
			for _, a := range assignments {
				if a.PodUID == entries[i].pod && a.Resource == entries[i].resource {
					entries[i].all = union(entries[i].all, a.Container)
				}
			}
		}
	}
	return found
}
