package ledger

import (
	"errors"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/gpu"
)

// NodeView is what a look at the node found. The containers have to be read before the
// checkpoint: the kubelet writes the checkpoint before a container starts, so that
// in this order no container can be there whose entry is not yet.
type NodeView struct {
	// Assignments are what the kubelet's checkpoint lists, with its device IDs
	// turned into keys.
	Assignments []Assignment
	// CheckpointErr says why there are no assignments: the checkpoint is missing,
	// corrupt or unreadable. Nothing is then known of what the kubelet remembers.
	CheckpointErr error
	// Containers are those in which a process lives, the pods' sandboxes left out.
	Containers []Container
	// ContainersErr says that the processes could not be read. The last look then stands.
	ContainersErr error
	// Pods are what is known of pods from elsewhere; none need be.
	Pods []NodePod
}

// Assignment is what the kubelet gave to one container of one resource.
type Assignment struct {
	PodUID, Container, Resource string
	Keys                        []gpu.DeviceKey
}

// Container is a living container.
type Container struct {
	ID     string
	PodUID string
	// Namespace, Pod and Name are empty when not known.
	Namespace, Pod, Name string
	// Keys are the devices that it was given by Berth, as far as it can be told
	// from the container itself.
	Keys []gpu.DeviceKey
}

// NodePod is what the API says of a pod.
type NodePod struct {
	UID, Namespace, Name string
	// Ended is true for a pod that has finished or was deleted. The kubelet drops it
	// from memory at its next allocation, and may keep it in its file for long.
	Ended bool
	// Devices is how many devices the scheduler counts for the pod; 0 when not known.
	Devices int
}

// ErrDistrusted stands in for a checkpoint after Distrust.
var ErrDistrusted = errors.New("the kubelet has restarted and its checkpoint was not read since")

var errNotRead = errors.New("not read")

// Distrust is to be called when the kubelet has restarted, before the device
// plugin registers again. Until a Reconcile has a readable checkpoint, each device
// with a living container is barred.
func (l *Ledger) Distrust() Changes {
	return l.Reconcile(NodeView{CheckpointErr: ErrDistrusted, ContainersErr: errNotRead})
}

// Reconcile brings the ledger in line with the node and says what that changed.
// The rules are in the package's comment.
func (l *Ledger) Reconcile(view NodeView) Changes {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leadAgain()
	l.certain = view.CheckpointErr == nil
	before := maps.Clone(l.records)
	j := newJoin(l, view)
	for _, key := range j.keys() {
		next, keep := j.next(key)
		switch old, had := l.records[key]; {
		case !keep && had:
			l.remove(key)
		case keep && (!had || !equal(old.Holding, next)):
			l.put(next)
		}
	}
	l.count(j.pods)
	changes := diff(before, l.records)
	if l.dirty {
		l.save()
	}
	if len(changes.List) > 0 {
		l.publish()
		l.subs.notify()
	}
	changes.Conflicts = append(j.conflicts, l.clashes()...)
	return changes
}

// clashes are the devices that two holders have in different sizes: facts that no grant
// of this ledger has led to.
func (l *Ledger) clashes() []Conflict {
	table := l.bars.Load()
	var conflicts []Conflict
	for _, key := range l.order {
		// With no resource's name, what bars a device through another is its size.
		bar, barred := table.by("", key)
		if !barred || gpu.CompareKeys(bar.Through, key) >= 0 {
			continue
		}
		mine, other := l.records[key].Holder, l.records[bar.Through].Holder
		if a, b := other.ID+other.PodUID, mine.ID+mine.PodUID; a != b {
			conflicts = append(conflicts, Conflict{Key: key, Pods: []string{a, b}, Why: "the first has " + bar.Through.String() + ", which is of the same silicon"})
		}
	}
	return conflicts
}

// leadAgain takes the writing back when the agent that took it has died.
func (l *Ledger) leadAgain() {
	if !l.store.orphaned() {
		return
	}
	l.deps.Log.Info("the newer agent has died; taking over the ledger again")
	if err := l.takeOver(); err != nil {
		l.deps.Log.Error("take over ledger", "error", err)
	}
}

// count finds the orphans that the scheduler does not count: all those of pods that
// have ended, and of others as many as the pod occupies beyond what it asked for.
func (l *Ledger) count(pods map[string]NodePod) {
	occupied := map[string]int{}
	for _, key := range l.order {
		if h := l.records[key].Holder; h.Kind == Pod || h.Kind == Orphan {
			occupied[h.PodUID]++
		}
	}
	for _, key := range slices.Backward(l.order) {
		h := l.records[key].Holding
		if h.Holder.Kind != Orphan {
			continue
		}
		pod, known := pods[h.Holder.PodUID]
		excess := known && pod.Devices > 0 && occupied[pod.UID] > pod.Devices
		if excess {
			occupied[pod.UID]--
		}
		if uncounted := known && pod.Ended || excess; uncounted != h.Uncounted {
			h.Uncounted = uncounted
			l.put(h)
		}
	}
}

// join brings together what the ledger has and what the node shows.
type join struct {
	l           *Ledger
	view        NodeView
	checkpoint  bool // is known
	pods        map[string]NodePod
	listed      map[gpu.DeviceKey]listing
	live        map[gpu.DeviceKey]map[string]*use // by pod UID
	conflicts   []Conflict
	listedByPod map[string][]Assignment
	heldByPod   map[string][]gpu.DeviceKey // by the ledger before
}

// listing is one pod's entries for a device.
type listing struct {
	pod, resource string
	containers    []string
}

// use is one pod's living containers on a device.
type use struct {
	pod, namespace, podName string
	ids, names              []string
}

func newJoin(l *Ledger, view NodeView) *join {
	j := &join{
		l: l, view: view, checkpoint: view.CheckpointErr == nil,
		pods:        map[string]NodePod{},
		listed:      map[gpu.DeviceKey]listing{},
		live:        map[gpu.DeviceKey]map[string]*use{},
		listedByPod: map[string][]Assignment{},
		heldByPod:   map[string][]gpu.DeviceKey{},
	}
	for _, key := range l.order {
		if h := l.records[key].Holder; h.Kind == Pod || h.Kind == Orphan {
			j.heldByPod[h.PodUID] = append(j.heldByPod[h.PodUID], key)
		}
	}
	for _, pod := range view.Pods {
		j.pods[pod.UID] = pod
	}
	if j.checkpoint {
		for _, a := range view.Assignments {
			// The kubelet is about to drop these.
			if !j.pods[a.PodUID].Ended {
				j.listedByPod[a.PodUID] = append(j.listedByPod[a.PodUID], a)
			}
		}
	}
	j.findLive()
	j.findListed()
	return j
}

func (j *join) findListed() {
	for _, pod := range slices.Sorted(maps.Keys(j.listedByPod)) {
		for _, a := range j.listedByPod[pod] {
			for _, key := range a.Keys {
				j.list(key, a)
			}
		}
	}
}

func (j *join) list(key gpu.DeviceKey, a Assignment) {
	entry, taken := j.listed[key]
	if taken && entry.pod != a.PodUID {
		// A kubelet does not do this. The one that lives, or else was there before, is right.
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
	j.listed[key] = entry
}

// findLive says which devices have living containers. Three things show that a
// container uses a device: its own evidence; that the kubelet gave it to the container
// of that name; that the ledger saw this very container on it before.
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
		holder := Holder{PodUID: c.PodUID, Namespace: c.Namespace, Pod: c.Pod, Container: c.Name}
		for _, key := range j.keysOf(c) {
			j.use(key, holder, c.ID)
		}
	}
}

func (j *join) keysOf(c Container) []gpu.DeviceKey {
	keys := slices.Clone(c.Keys)
	// Without a name, and with no evidence of its own, any container of the pod may
	// be the one.
	nameless := c.Name == "" && len(c.Keys) == 0
	for _, a := range j.listedByPod[c.PodUID] {
		if nameless || c.Name != "" && a.Container == c.Name {
			keys = append(keys, a.Keys...)
		}
	}
	for _, key := range j.heldByPod[c.PodUID] {
		if c.on(j.l.records[key].Holding) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (j *join) use(key gpu.DeviceKey, holder Holder, ids ...string) {
	if j.live[key] == nil {
		j.live[key] = map[string]*use{}
	}
	u := j.live[key][holder.PodUID]
	if u == nil {
		u = &use{pod: holder.PodUID}
		j.live[key][holder.PodUID] = u
	}
	if holder.Pod != "" {
		u.namespace, u.podName = holder.Namespace, holder.Pod
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

// next is the state of a key after this look; false when nobody holds it.
func (j *join) next(key gpu.DeviceKey) (Holding, bool) {
	var old Holding
	if r, ok := j.l.records[key]; ok {
		old = r.Holding
	}
	if old.Holder.Kind == Claim || old.Holder.Kind == Maintenance {
		j.report(key, old.Holder.ID, "", "held by "+string(old.Holder.Kind))
		return old, true
	}
	if entry, ok := j.listed[key]; ok {
		j.report(key, entry.pod, entry.pod, "the kubelet gave it to the first, the others live on it")
		return j.remembered(key, old, entry), true
	}
	if u := j.survivor(key, old); u != nil {
		return j.orphan(key, old, u), true
	}
	if old.Holder.Kind == Orphan && !j.checkpoint {
		old = old.lifeless()
	}
	return old, old.Holder.Kind == Pod && j.waits(old)
}

// report notes the living containers on a device that is somebody else's.
func (j *join) report(key gpu.DeviceKey, owner, except, why string) {
	pods := []string{owner}
	for _, pod := range slices.Sorted(maps.Keys(j.live[key])) {
		if pod != except {
			pods = append(pods, pod)
		}
	}
	if len(pods) > 1 {
		j.conflicts = append(j.conflicts, Conflict{Key: key, Pods: pods, Why: why})
	}
}

func (j *join) remembered(key gpu.DeviceKey, old Holding, entry listing) Holding {
	h := Holding{Key: key, Since: old.Since, Containers: entry.containers, Holder: Holder{Kind: Pod, PodUID: entry.pod, Resource: entry.resource}}
	if old.Holder.PodUID != entry.pod && !old.Pending || old.Since.IsZero() {
		h.Since = j.l.deps.Clock.Now()
	}
	if old.Holder.PodUID == entry.pod {
		h.Holder.Namespace, h.Holder.Pod = old.Holder.Namespace, old.Holder.Pod
	}
	h.Holder.Container = entry.containers[0]
	if u := j.live[key][entry.pod]; u != nil {
		h.Live = u.ids
		j.name(&h.Holder, u)
	}
	j.name(&h.Holder, nil)
	return h
}

// name fills in what the container and the API say of the pod.
func (j *join) name(h *Holder, u *use) {
	if u != nil && u.podName != "" {
		h.Namespace, h.Pod = u.namespace, u.podName
	}
	if u != nil && len(u.names) > 0 {
		h.Container = u.names[0]
	}
	if pod, ok := j.pods[h.PodUID]; ok && pod.Name != "" {
		h.Namespace, h.Pod = pod.Namespace, pod.Name
	}
}

// survivor is the pod whose containers live on a device that the kubelet does
// not list: the one that was there before, or the first.
func (j *join) survivor(key gpu.DeviceKey, old Holding) *use {
	pods := slices.Sorted(maps.Keys(j.live[key]))
	if i := slices.Index(pods, old.Holder.PodUID); i > 0 {
		pods[0], pods[i] = pods[i], pods[0]
	}
	for _, pod := range pods {
		u := j.live[key][pod]
		if old.Holder.Kind == Orphan && old.Holder.PodUID == pod || j.stillAlive(u) {
			if len(pods) > 1 {
				j.conflicts = append(j.conflicts, Conflict{Key: key, Pods: pods, Why: "all live on it, the kubelet lists none"})
			}
			return u
		}
	}
	return nil
}

// stillAlive looks again before somebody is called an orphan: a container can
// have ended, and the kubelet dropped it, since the processes were read.
func (j *join) stillAlive(u *use) bool {
	all, ok := j.l.look()
	if !ok {
		return true
	}
	u.ids = slices.DeleteFunc(slices.Clone(u.ids), func(id string) bool {
		return !slices.ContainsFunc(all, func(c Container) bool { return c.ID == id })
	})
	return len(u.ids) > 0
}

func (j *join) orphan(key gpu.DeviceKey, old Holding, u *use) Holding {
	h := Holding{Key: key, Since: j.l.deps.Clock.Now(), Containers: u.names, Live: u.ids, Holder: Holder{Kind: Orphan, PodUID: u.pod}}
	if old.Holder.PodUID == u.pod && !old.Since.IsZero() {
		h.Since, h.Uncounted = old.Since, old.Uncounted
		h.Containers = union(old.Containers, u.names...)
		h.Holder.Namespace, h.Holder.Pod = old.Holder.Namespace, old.Holder.Pod
		h.Holder.Container, h.Holder.Resource = old.Holder.Container, old.Holder.Resource
	}
	j.name(&h.Holder, u)
	return h
}

// waits tells whether a holding that is neither listed nor alive stays for now.
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
