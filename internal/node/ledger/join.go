package ledger

import (
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// join brings together what the ledger has and what the node shows.
type join struct {
	l           *Ledger
	view        NodeView
	checkpoint  bool // is known
	pods        map[string]NodePod
	listed      map[gpu.DeviceKey]listing
	live        map[gpu.DeviceKey]map[string]*use // by pod UID
	conflicts   []Conflict
	listedByPod map[string][]Assignment    // with what the kubelet has dropped: a process outlives its entry
	heldByPod   map[string][]gpu.DeviceKey // by the ledger before
	claimedBy   map[string][]gpu.DeviceKey // the devices of the claims that a pod may use
	unmarked    []Container
}

// listing is one pod's entries for a device.
type listing struct {
	pod        string
	resource   string
	containers []string
	grants     []string
}

// use is the running containers of one pod on a device.
type use struct {
	pod       string
	namespace string
	podName   string
	ids       []string
	names     []string
}

// newJoin is called with the mutex held. The checkpoint of a view from before a Distrust is that of an earlier kubelet
// process.
func newJoin(l *Ledger, view NodeView) *join {
	if view.distrusts != l.distrusts {
		view.Assignments, view.CheckpointErr = nil, errDistrusted
	}
	j := &join{
		l: l, view: view, checkpoint: view.CheckpointErr == nil,
		pods:        map[string]NodePod{},
		listed:      map[gpu.DeviceKey]listing{},
		live:        map[gpu.DeviceKey]map[string]*use{},
		listedByPod: map[string][]Assignment{},
		heldByPod:   map[string][]gpu.DeviceKey{},
		claimedBy:   map[string][]gpu.DeviceKey{},
	}
	for _, key := range l.order {
		h := l.records[key]
		if h.Holder.OfPod() {
			j.heldByPod[h.Holder.PodUID] = append(j.heldByPod[h.Holder.PodUID], key)
		}
		for _, pod := range h.Pods {
			j.claimedBy[pod.UID] = append(j.claimedBy[pod.UID], key)
		}
	}
	for _, pod := range view.Pods {
		j.pods[pod.UID] = pod
	}
	if j.checkpoint {
		for _, a := range view.Assignments {
			j.listedByPod[a.PodUID] = append(j.listedByPod[a.PodUID], a)
		}
	}
	j.findLive()
	j.findListed()
	return j
}

// see records when the containers were read.
func (l *Ledger) see(j *join) {
	if j.view.ContainersErr == nil && !j.view.partial && j.view.distrusts == l.distrusts {
		l.looked = j.view.began
	}
}

func (j *join) findListed() {
	for _, pod := range slices.Sorted(maps.Keys(j.listedByPod)) {
		if j.pods[pod].Ended {
			continue // The kubelet drops its entries at the next allocation, or has done so in memory.
		}
		for _, a := range j.listedByPod[pod] {
			for _, key := range a.Keys {
				if !j.view.hasDropped(pod, a.Resource, key) && !j.outdated(pod, key) {
					j.list(key, a)
				}
			}
		}
	}
}

// outdated reports whether an entry is taken for that of a pod that has ended, until the pod is known: a claim or maintenance has the same
// hardware in another size, and neither a process nor the ledger shows the pod on it. At an agent's start the kubelet's checkpoint has
// entries of pods that ended before a claim got the hardware, and the API server may not have answered yet.
func (j *join) outdated(pod string, key gpu.DeviceKey) bool {
	if r := j.l.records[key]; r != nil || j.live[key][pod] != nil || j.l.reserved(gpu.Holder{Kind: gpu.HolderPod, PodUID: pod}, gpu.Located{Key: key}) == nil {
		return false
	}
	return j.l.deps.facts(pod).State == PodUnknown
}

func (j *join) list(key gpu.DeviceKey, a Assignment) {
	entry, taken := j.listed[key]
	if taken && entry.pod != a.PodUID {
		// A kubelet does not do this. The running one, or else the earlier one, takes precedence.
		j.conflicts = append(j.conflicts, Conflict{Key: key, Pods: []string{entry.pod, a.PodUID}, Why: "the checkpoint lists it for both"})
		if j.live[key][a.PodUID] == nil || j.live[key][entry.pod] != nil {
			return
		}
		entry = listing{}
	}
	entry.pod, entry.resource = a.PodUID, a.Resource
	if !slices.Contains(entry.containers, a.Container) {
		entry.containers = append(entry.containers, a.Container)
		slices.Sort(entry.containers)
	}
	if a.Grant != "" && !slices.Contains(entry.grants, a.Grant) {
		entry.grants = append(entry.grants, a.Grant)
	}
	j.listed[key] = entry
}

// findLive returns the devices with running containers. A container uses a device if its own evidence shows it, if the
// kubelet assigned it to the container of that name, or if the ledger found this container on it before.
func (j *join) findLive() {
	if j.view.ContainersErr != nil {
		for _, key := range j.l.order {
			if h := j.l.records[key].Holding; len(h.Live) > 0 {
				j.use(key, h.Holder, h.Live...)
			}
		}
		return
	}
	for _, c := range j.view.Containers {
		holder := gpu.Holder{PodUID: c.PodUID, Namespace: c.Namespace, Name: c.Pod, Container: c.Name}
		for _, key := range j.keysOf(c) {
			j.use(key, holder, c.ID)
		}
	}
}

// keysOf returns the devices that a container uses. The checkpoint counts where it lists the container; otherwise its
// own grants. A container with neither, whose pod requests devices and which has their nodes, uses them in an unknown
// size, unless they are those of a claim that the pod may use. A container continues to use the devices that the ledger
// found it on before.
func (j *join) keysOf(c Container) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	listed := false
	// Without a name, and with no evidence of its own, any container of the pod may
	// be the one.
	nameless := c.Name == "" && len(c.Keys) == 0
	for _, a := range j.listedByPod[c.PodUID] {
		if nameless || c.Name != "" && a.Container == c.Name {
			keys = append(keys, a.Keys...)
			listed = true
		}
	}
	if !listed {
		keys = append(keys, c.Keys...)
	}
	for _, key := range j.heldByPod[c.PodUID] {
		if c.on(j.l.records[key].Holding) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 && !listed && len(c.Open) > 0 && j.requestsDevices(c) {
		claimed, rest := j.claimed(c)
		keys = append(keys, claimed...)
		if rest = j.certain(c, rest); len(rest) > 0 {
			c.Open = rest
			j.unmarked = append(j.unmarked, c)
			keys = append(keys, rest...)
		}
	}
	return keys
}

// claimed divides the devices whose nodes a container has: into those of claims that its pod may use, as the claims have
// them, and the rest. Device nodes do not show the size, so a claim's replica stands for the device.
func (j *join) claimed(c Container) (claimed, rest []gpu.DeviceKey) {
	for _, open := range c.Open {
		before := len(claimed)
		for _, key := range j.claimedBy[c.PodUID] {
			if open.Overlaps(key) {
				claimed = append(claimed, key)
			}
		}
		if len(claimed) == before {
			rest = append(rest, open)
		}
	}
	return claimed, rest
}

// certain leaves out the devices of claims while the API server has not sent the container's pod, and the kubelet lists the pod for some
// claim: that may be one for admin access, which holds nothing.
func (j *join) certain(c Container, open []gpu.DeviceKey) []gpu.DeviceKey {
	if j.l.deps.facts(c.PodUID).State != PodUnknown || !slices.ContainsFunc(j.view.Claims, func(claim ClaimPods) bool {
		return slices.ContainsFunc(claim.Pods, func(pod gpu.Pod) bool { return pod.UID == c.PodUID })
	}) {
		return open
	}
	return slices.DeleteFunc(open, func(device gpu.DeviceKey) bool {
		return slices.ContainsFunc(j.l.order, func(key gpu.DeviceKey) bool {
			return j.l.records[key].Holder.Kind == gpu.HolderClaim && device.Overlaps(key)
		})
	})
}

// requestsDevices reports whether a container's pod requests devices of this plugin. It is assumed of an unknown pod
// when the checkpoint is not known either, because then there is no other source.
func (j *join) requestsDevices(c Container) bool {
	facts := j.l.deps.facts(c.PodUID)
	if facts.Containers == nil {
		return !j.checkpoint && facts.State != PodEnded
	}
	return slices.ContainsFunc(facts.Containers, func(spec PodContainer) bool {
		requests := slices.ContainsFunc(slices.Collect(maps.Values(spec.Devices)), func(count int) bool { return count > 0 })
		return (c.Name == "" || spec.Name == c.Name) && requests
	})
}

func (j *join) use(key gpu.DeviceKey, holder gpu.Holder, ids ...string) {
	if j.live[key] == nil {
		j.live[key] = map[string]*use{}
	}
	u := j.live[key][holder.PodUID]
	if u == nil {
		u = &use{pod: holder.PodUID}
		j.live[key][holder.PodUID] = u
	}
	if holder.Name != "" {
		u.namespace, u.podName = holder.Namespace, holder.Name
	}
	u.ids = union(u.ids, ids...)
	if holder.Container != "" {
		u.names = union(u.names, holder.Container)
	}
}

// union keeps a sorted list of different texts.
func union(list []string, more ...string) []string {
	list = append(slices.Clone(list), more...)
	slices.Sort(list)
	return slices.Compact(list)
}

func (j *join) keys() []gpu.DeviceKey {
	all := slices.Clone(j.l.order)
	all = slices.AppendSeq(all, maps.Keys(j.listed))
	all = slices.AppendSeq(all, maps.Keys(j.live))
	slices.SortFunc(all, gpu.CompareKeys)
	return slices.Compact(all)
}

// next returns the state of a key after this reading; false when it has no holder. With free the kubelet considers the
// device free at this moment. This is the only place where the state of a holding is decided:
//
//	state        | listed for a pod | in use by containers | neither
//	Claim, Maint.| same             | same                 | same
//	none         | Pod              | Orphan               | none
//	Pod          | Pod              | Orphan               | none; Pod while it waits (see waits)
//	Orphan       | Pod              | Orphan               | none; Pod when the checkpoint is not known
//	             |                  |                      | and the kubelet does not call it free
func (j *join) next(key gpu.DeviceKey, free bool) (Holding, bool) {
	var old Holding
	if r, ok := j.l.records[key]; ok {
		old = r.Holding
	}
	if old.Holder.Kind == gpu.HolderClaim || old.Holder.Kind == gpu.HolderMaintenance {
		j.report(key, old.Holder.ID, old.has, "held by "+string(old.Holder.Kind))
		return old, true
	}
	if entry, ok := j.listed[key]; ok {
		j.report(key, entry.pod, func(pod string) bool { return pod == entry.pod }, "the kubelet assigned it to the first, the others run on it")
		return j.remembered(key, old, entry), true
	}
	if u := j.user(key, old.Holder.PodUID); u != nil {
		return j.orphan(key, old, u), true
	}
	if old.Holder.Kind == gpu.HolderOrphan && !j.checkpoint && !free {
		return old.lifeless(), true
	}
	return old.lifeless(), old.Holder.Kind == gpu.HolderPod && j.waits(old)
}

// report records the running containers on a device that has another holder; those of its own pods are none.
func (j *join) report(key gpu.DeviceKey, owner string, own func(pod string) bool, why string) {
	pods := []string{owner}
	for _, pod := range slices.Sorted(maps.Keys(j.live[key])) {
		if !own(pod) {
			pods = append(pods, pod)
		}
	}
	if len(pods) > 1 {
		j.conflicts = append(j.conflicts, Conflict{Key: key, Pods: pods, Why: why})
	}
}

func (j *join) remembered(key gpu.DeviceKey, old Holding, entry listing) Holding {
	h := Holding{Holding: gpu.Holding{Key: key, Since: old.Since,
		Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: entry.pod, Resource: entry.resource}}, Containers: entry.containers}
	if old.Holder.PodUID != entry.pod && !old.Pending || old.Since.IsZero() {
		h.Since = j.l.deps.Clock.Now()
	}
	if old.Holder.PodUID == entry.pod || old.Pending {
		h.Grants = slices.Clone(old.Grants)
	}
	for _, id := range entry.grants {
		if !slices.Contains(h.Grants, id) {
			h.Grants = append(h.Grants, id)
		}
	}
	if old.Holder.PodUID == entry.pod {
		h.Holder.Namespace, h.Holder.Name = old.Holder.Namespace, old.Holder.Name
	}
	h.Holder.Container = entry.containers[0]
	if u := j.live[key][entry.pod]; u != nil {
		h.Live = u.ids
		j.name(&h.Holder, u)
	}
	j.name(&h.Holder, nil)
	return h
}

// name sets the pod's data from the container and the API.
func (j *join) name(h *gpu.Holder, u *use) {
	if u != nil && u.podName != "" {
		h.Namespace, h.Name = u.namespace, u.podName
	}
	if u != nil && len(u.names) > 0 {
		h.Container = u.names[0]
	}
	if pod, ok := j.pods[h.PodUID]; ok && pod.Name != "" {
		h.Namespace, h.Name = pod.Namespace, pod.Name
	}
}

// user returns the pod whose containers run on a device: the holder's if any of its containers does, or the first. It
// is nil when no container runs on it.
func (j *join) user(key gpu.DeviceKey, holder string) *use {
	pods := slices.Sorted(maps.Keys(j.live[key]))
	if len(pods) == 0 {
		return nil
	}
	if i := slices.Index(pods, holder); i > 0 {
		pods[0], pods[i] = pods[i], pods[0]
	}
	if len(pods) > 1 {
		j.conflicts = append(j.conflicts, Conflict{Key: key, Pods: pods, Why: "all live on it, the kubelet lists none"})
	}
	return j.live[key][pods[0]]
}

// newOrphans reports whether any device would newly be held by an orphan. Then the containers have to be read again,
// since one can have ended, and the kubelet dropped it, between the reading of the containers and that of the
// checkpoint.
func (j *join) newOrphans() bool {
	for key, pods := range j.live {
		if _, listed := j.listed[key]; listed {
			continue
		}
		r, held := j.l.records[key]
		if !held || r.Holder.Kind != gpu.HolderOrphan && r.Holder.Kind != gpu.HolderClaim && r.Holder.Kind != gpu.HolderMaintenance || r.Holder.Kind == gpu.HolderOrphan && pods[r.Holder.PodUID] == nil {
			return true
		}
	}
	return false
}

// confirm drops the uses of containers that have ended since they were read.
func (j *join) confirm(living []Container) {
	for key, pods := range j.live {
		for pod, u := range pods {
			u.ids = slices.DeleteFunc(u.ids, func(id string) bool {
				return !slices.ContainsFunc(living, func(c Container) bool { return c.ID == id })
			})
			if len(u.ids) == 0 {
				delete(pods, pod)
			}
		}
		if len(pods) == 0 {
			delete(j.live, key)
		}
	}
}

func (j *join) orphan(key gpu.DeviceKey, old Holding, u *use) Holding {
	h := Holding{Holding: gpu.Holding{Key: key, Since: j.l.deps.Clock.Now(),
		Holder: gpu.Holder{Kind: gpu.HolderOrphan, PodUID: u.pod}}, Containers: u.names, Live: u.ids}
	if old.Holder.PodUID == u.pod && !old.Since.IsZero() {
		h.Since, h.Uncounted, h.Grants = old.Since, old.Uncounted, slices.Clone(old.Grants)
		h.Containers = union(old.Containers, u.names...)
		h.Holder.Namespace, h.Holder.Name = old.Holder.Namespace, old.Holder.Name
		h.Holder.Container, h.Holder.Resource = old.Holder.Container, old.Holder.Resource
	}
	if old.Pending {
		h.Since, h.Grants, h.Holder.Resource = old.Since, slices.Clone(old.Grants), old.Holder.Resource
	}
	j.name(&h.Holder, u)
	return h
}

// waits reports whether a holding is kept for now although it is not listed and its containers do not run.
func (j *join) waits(old Holding) bool {
	age := j.l.deps.Clock.Since(old.Since)
	switch {
	case old.Pending && j.checkpoint:
		return age < j.l.deps.PendingLimit
	case old.Pending:
		return age < j.l.deps.UnknownLimit
	}
	// The kubelet may well remember it; only the file is unreadable.
	return !j.checkpoint && !j.pods[old.Holder.PodUID].Ended
}
