package trace

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// containerDevices is a container's devices of one resource, which the checkpoint (by UID) and PodResources (by name) both list.
type containerDevices struct {
	Pod       Ref
	Container string
	Resource  string
	IDs       []string
}

func (e containerDevices) key() string {
	ids := slices.Clone(e.IDs)
	slices.Sort(ids)
	return e.Container + "\x00" + e.Resource + "\x00" + strings.Join(slices.Compact(ids), "\x00")
}

// namesByDevices finds the names of pods that are known only by UID, by their devices: the kubelet assigns a device to
// one container at a time, so container, resource and device IDs together identify the pod. If more than one name
// matches a UID, or more than one UID a name, no name is assigned.
func namesByDevices(byUID, byName []containerDevices) map[string]Ref {
	names := map[string][]Ref{}
	for _, entry := range byName {
		if entry.Pod.named() && len(entry.IDs) > 0 {
			names[entry.key()] = append(names[entry.key()], Ref{Namespace: entry.Pod.Namespace, Name: entry.Pod.Name})
		}
	}
	candidates := map[string][]Ref{}
	for _, entry := range byUID {
		if entry.Pod.UID != "" {
			candidates[entry.Pod.UID] = append(candidates[entry.Pod.UID], names[entry.key()]...)
		}
	}
	taken := map[Ref]int{}
	for uid, refs := range candidates {
		refs = distinct(refs)
		candidates[uid] = refs
		for _, ref := range refs {
			taken[ref]++
		}
	}
	found := map[string]Ref{}
	for uid, refs := range candidates {
		if len(refs) == 1 && taken[refs[0]] == 1 {
			ref := refs[0]
			ref.UID = uid
			found[uid] = ref
		}
	}
	return found
}

func distinct(refs []Ref) []Ref {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, compareRefs)
	return slices.Compact(refs)
}

func compareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
}

// directory resolves every Ref of the evidence to one identity per pod.
type directory struct {
	byUID  map[string]Ref   // complete identity of each known UID
	byName map[Ref][]string // UIDs of each name, sorted
	live   map[string]bool  // UIDs that the API or a running container confirms
	names  map[Ref]string   // names that were matched to one of several UIDs by devices
}

// newDirectory uses the joiner's catalogue to compare devices that sources name differently.
func newDirectory(evidence *Evidence, j *joiner) *directory {
	d := &directory{byUID: map[string]Ref{}, byName: map[Ref][]string{}, live: map[string]bool{}, names: map[Ref]string{}}
	for _, ref := range allRefs(evidence) {
		if ref.UID == "" {
			continue
		}
		if known := d.byUID[ref.UID]; !known.named() || (ref.named() && compareRefs(ref, known) < 0) {
			d.byUID[ref.UID] = ref
		}
	}
	byUID, byName := entries(evidence)
	d.nameUnnamed(byUID, byName)
	d.nameUnnamed(j.containerEntries(), j.physical(byName))
	for uid, ref := range d.byUID {
		if ref.named() {
			name := Ref{Namespace: ref.Namespace, Name: ref.Name}
			d.byName[name] = append(d.byName[name], uid)
		}
	}
	for name := range d.byName {
		slices.Sort(d.byName[name])
	}
	for _, pod := range evidence.Pods {
		if pod.Ref.UID != "" && pod.Source.Kind == PodSpec {
			d.live[pod.Ref.UID] = true
		}
	}
	for _, container := range evidence.Containers {
		if container.Pod.UID != "" && len(container.PIDs) > 0 {
			d.live[container.Pod.UID] = true
		}
	}
	d.matchRecreated(byUID, byName)
	return d
}

// nameUnnamed assigns names to UIDs that have none yet.
func (d *directory) nameUnnamed(byUID, byName []containerDevices) {
	var unnamed []containerDevices
	for _, entry := range byUID {
		if !d.byUID[entry.Pod.UID].named() {
			unnamed = append(unnamed, entry)
		}
	}
	maps.Copy(d.byUID, namesByDevices(unnamed, byName))
}

// containerEntries returns the devices of running containers, without a resource: they identify a pod while the
// checkpoint cannot be read.
func (j *joiner) containerEntries() []containerDevices {
	var list []containerDevices
	for _, fact := range j.evidence.Containers {
		for _, said := range j.containerStatements(fact, nil, false) {
			if !said.vague && len(said.set) > 0 {
				list = append(list, containerDevices{Pod: fact.Pod, Container: fact.Container, IDs: texts(said.set)})
				break
			}
		}
	}
	return list
}

// physical converts entries to GPUs, without a resource, one entry per container.
func (j *joiner) physical(entries []containerDevices) []containerDevices {
	var list []containerDevices
	for _, entry := range entries {
		if !j.catalogue.isGPU(entry.Resource, entry.IDs) {
			continue
		}
		ids := texts(j.statementOf(Source{}, entry.Resource, j.vendors.ofResource(entry.Resource), entry.IDs).set)
		i := slices.IndexFunc(list, func(e containerDevices) bool { return e.Pod == entry.Pod && e.Container == entry.Container })
		if i < 0 {
			list = append(list, containerDevices{Pod: entry.Pod, Container: entry.Container, IDs: ids})
			continue
		}
		list[i].IDs = append(list[i].IDs, ids...)
	}
	return list
}

// matchRecreated distinguishes pods of one name by their devices: the checkpoint keeps the UID of a deleted pod for a
// while after a new pod of the same name was created.
func (d *directory) matchRecreated(byUID, byName []containerDevices) {
	holders := map[string][]string{}
	for _, entry := range byUID {
		holders[entry.key()] = append(holders[entry.key()], entry.Pod.UID)
	}
	votes := map[Ref][]string{}
	for _, entry := range byName {
		name := Ref{Namespace: entry.Pod.Namespace, Name: entry.Pod.Name}
		for _, uid := range holders[entry.key()] {
			if slices.Contains(d.byName[name], uid) {
				votes[name] = append(votes[name], uid)
			}
		}
	}
	for name, uids := range votes {
		slices.Sort(uids)
		if uids = slices.Compact(uids); len(uids) == 1 {
			d.names[name] = uids[0]
		}
	}
}

// resolve completes a reference. A name with several UIDs resolves to the UID that holds the same devices, otherwise to
// the only live one, otherwise it stays a name.
func (d *directory) resolve(ref Ref) Ref {
	if ref.UID != "" {
		return d.byUID[ref.UID]
	}
	uids := d.byName[Ref{Namespace: ref.Namespace, Name: ref.Name}]
	if len(uids) == 1 {
		return d.byUID[uids[0]]
	}
	if uid, ok := d.names[Ref{Namespace: ref.Namespace, Name: ref.Name}]; ok {
		return d.byUID[uid]
	}
	var live []string
	for _, uid := range uids {
		if d.live[uid] {
			live = append(live, uid)
		}
	}
	if len(live) == 1 {
		return d.byUID[live[0]]
	}
	return ref
}

func allRefs(evidence *Evidence) []Ref {
	var refs []Ref
	for _, fact := range evidence.Pods {
		refs = append(refs, fact.Ref)
	}
	for _, fact := range evidence.Assignments {
		refs = append(refs, fact.Pod)
	}
	for _, fact := range evidence.Answers {
		refs = append(refs, fact.Pod)
	}
	for _, fact := range evidence.Containers {
		refs = append(refs, fact.Pod)
	}
	for _, fact := range evidence.Claims {
		refs = append(refs, fact.Pods...)
	}
	for _, fact := range evidence.Uses {
		refs = append(refs, fact.Pod)
	}
	for _, fact := range evidence.Processes {
		refs = append(refs, Ref{UID: fact.PodUID})
	}
	return refs
}

func entries(evidence *Evidence) (byUID, byName []containerDevices) {
	for _, fact := range evidence.Assignments {
		entry := containerDevices{Pod: fact.Pod, Container: fact.Container, Resource: fact.Resource, IDs: fact.IDs}
		switch {
		case fact.Source.Kind == Checkpoint, fact.Source.Kind == Ledger:
			byUID = append(byUID, entry)
		case fact.Source.Kind == PodResources:
			byName = append(byName, entry)
		}
	}
	return byUID, byName
}
