package ledger

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// NodeView is the result of a reading of the node. The containers have to be read before the checkpoint: the kubelet
// writes the checkpoint before a container starts, so that in this order every container has its entry.
type NodeView struct {
	// Assignments are the entries of the kubelet's checkpoint, with device IDs converted to keys.
	Assignments []Assignment
	// CheckpointErr is the reason why there are no assignments: the checkpoint is missing, corrupt or unreadable. The
	// kubelet's assignments are then unknown.
	CheckpointErr error
	// Containers are those in which a process runs, without the pods' sandboxes.
	Containers []Container
	// ContainersErr is set when the processes could not be read. The last reading then remains valid.
	ContainersErr error
	// Claims are the kubelet's record of all claims that are prepared, or being prepared, with their pods; nil when it is not known. It has
	// to be read after the containers too: the kubelet writes it before it prepares a claim.
	Claims []ClaimPods
	// Pods is what is known of pods from other sources; it may be empty.
	Pods []NodePod
	// dropped are entries of Assignments that the kubelet, when queried, no longer had.
	dropped []Question
	// distrusts is how often the ledger had been distrusted when the view was made.
	distrusts uint64
	// began is when the view was made.
	began time.Time
	// stamp is Deps.Stamp when the view was made.
	stamp string
	// partial is true when Containers are only those of pods.
	partial bool
	pods    []string
}

// NewView returns a view to be filled in. It must be called before anything is read, because data that was read before
// a Distrust does not end the distrust.
func (l *Ledger) NewView() NodeView {
	stamp := ""
	if l.deps.Stamp != nil {
		stamp = l.deps.Stamp()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stamp = stamp
	return NodeView{distrusts: l.distrusts, began: l.deps.Clock.Now(), stamp: stamp}
}

// hasDropped reports whether the kubelet has removed an entry that its checkpoint still lists.
func (v *NodeView) hasDropped(pod, resource string, key gpu.DeviceKey) bool {
	return slices.ContainsFunc(v.dropped, func(q Question) bool { return q.PodUID == pod && q.Resource == resource && q.Key == key })
}

// Assignment has the devices of one resource that the kubelet assigned to one container.
type Assignment struct {
	PodUID    string
	Container string
	Resource  string
	Keys      []gpu.DeviceKey
	// Grant is the ID in the answer to Allocate that the kubelet remembers; empty when there is none.
	Grant string
}

// Container is a running container.
type Container struct {
	ID     string
	PodUID string
	// Namespace, Pod and Name are empty when not known.
	Namespace string
	Pod       string
	Name      string
	// Keys are the devices that it got from Berth, according to its grants. They count only where the checkpoint does
	// not list the container.
	Keys []gpu.DeviceKey
	// Open are the devices whose device nodes it has, whatever the source.
	Open []gpu.DeviceKey
}

// NodePod is a pod according to the API.
type NodePod struct {
	UID       string
	Namespace string
	Name      string
	// Ended is true for a pod that has finished or was deleted. The kubelet drops it from memory at its next
	// allocation, and may keep it in its file for a long time.
	Ended bool
	// Devices is how many devices the scheduler counts for the pod; 0 when not known.
	Devices int
}

// errDistrusted replaces the checkpoint after Distrust.
var errDistrusted = errors.New("the kubelet has restarted and its checkpoint was not read since")

var errNotRead = errors.New("not read")

// Distrust must be called when the kubelet has restarted, before the device plugin registers again. Until a Reconcile
// has a checkpoint that was read after this call, each device with a running container is blocked.
func (l *Ledger) Distrust() Changes {
	l.mu.Lock()
	l.distrusts++
	l.looked = time.Time{}
	view := NodeView{CheckpointErr: errDistrusted, ContainersErr: errNotRead, distrusts: l.distrusts}
	l.mu.Unlock()
	return l.Reconcile(view)
}

// Reconcile brings the ledger in line with the view of the node, which NewView began, and returns the changes. The
// rules are in the package comment.
func (l *Ledger) Reconcile(view NodeView) Changes {
	l.leadAgain()
	if err := l.followFile(); err != nil {
		l.deps.Log.Warn("Could not follow the ledger of another agent", "error", err)
	}
	l.mu.Lock()
	l.clamp()
	before := maps.Clone(l.records)
	l.notePods(view.Claims)
	l.releaseForgotten(&view)
	j := newJoin(l, view)
	if l.deps.Look != nil && j.newOrphans() {
		l.mu.Unlock()
		living, err := l.deps.Look()
		l.mu.Lock()
		j = newJoin(l, view)
		if err == nil {
			j.confirm(living)
		}
	}
	l.certain = j.checkpoint
	l.see(j)
	for _, key := range j.keys() {
		l.revisit(j, key, false)
	}
	l.noteUsers(j)
	l.count(j.pods)
	changes := diff(before, l.records)
	if len(changes.List) > 0 {
		l.publish()
	}
	changes.Conflicts, changes.Unmarked = append(j.conflicts, l.clashes()...), j.unmarked
	l.mu.Unlock()
	if l.dirty() {
		_ = l.save() // A failure is a fault, and the next Reconcile tries again.
	}
	if len(changes.List) > 0 {
		l.subs.Set()
	}
	return changes
}

// clamp sets the start of holdings in the future to now: after the clock was set back, their age would not grow until
// then.
func (l *Ledger) clamp() {
	now := l.deps.Clock.Now()
	for _, key := range l.order {
		if h := l.records[key].Holding; h.Since.After(now) {
			h.Since = now
			l.put(h)
		}
	}
}

// revisit sets the state of one key from the view, and reports whether it changed.
func (l *Ledger) revisit(j *join, key gpu.DeviceKey, free bool) bool {
	next, keep := j.next(key, free)
	switch old, had := l.records[key]; {
	case !keep && had:
		l.remove(key)
	case keep && (!had || !equal(old.Holding, next)):
		l.put(next)
	default:
		return false
	}
	return true
}

// clashes are the devices that two holders have in different sizes: facts that no grant
// of this ledger has led to.
func (l *Ledger) clashes() []Conflict {
	table := l.blocks.Load()
	var conflicts []Conflict
	for _, key := range l.order {
		// With no resource's name, the size decides what blocks a device through another.
		device := l.records[key].Located()
		block, blocked := table.by("", &device, l.deps.Placement)
		if !blocked || gpu.CompareKeys(block.Through, key) >= 0 {
			continue
		}
		mine, other := l.records[key].Holder, l.records[block.Through].Holder
		if a, b := other.ID+other.PodUID, mine.ID+mine.PodUID; a != b {
			conflicts = append(conflicts, Conflict{Key: key, Pods: []string{a, b},
				Why: "the first has " + block.Through.String() + ", which is on the same hardware"})
		}
	}
	return conflicts
}

// count marks the orphans that the scheduler does not count: all those of pods that have ended, and of others as many
// as the pod occupies beyond its request.
func (l *Ledger) count(pods map[string]NodePod) {
	occupied := map[string]int{}
	for _, key := range l.order {
		if h := l.records[key].Holder; h.OfPod() {
			occupied[h.PodUID]++
		}
	}
	for _, key := range slices.Backward(l.order) {
		h := l.records[key].Holding
		if h.Holder.Kind != gpu.HolderOrphan {
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
