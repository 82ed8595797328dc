package ledger

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
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
	// dropped are entries of Assignments that the kubelet, asked for them, does not have any more.
	dropped []Question
	// distrusts is how often the ledger had been distrusted when the view was made.
	distrusts uint64
	// began is when the view was made.
	began time.Time
	// stamp is Deps.Stamp when the view was made.
	stamp string
	// partial says that Containers are of pods only.
	partial bool
	pods    []string
}

// NewView makes a view to be filled in. It is to be called before anything is read: what was read before a Distrust
// does not end the distrust.
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

// hasDropped tells whether the kubelet has removed an entry that its checkpoint still lists.
func (v *NodeView) hasDropped(pod, resource string, key gpu.DeviceKey) bool {
	return slices.ContainsFunc(v.dropped, func(q Question) bool { return q.PodUID == pod && q.Resource == resource && q.Key == key })
}

// Assignment is what the kubelet gave to one container of one resource.
type Assignment struct {
	PodUID, Container, Resource string
	Keys                        []gpu.DeviceKey
	// Grant is the ID in the answer to Allocate that the kubelet remembers; empty when there is none.
	Grant string
}

// Container is a living container.
type Container struct {
	ID     string
	PodUID string
	// Namespace, Pod and Name are empty when not known.
	Namespace, Pod, Name string
	// Keys are the devices that it was given by Berth, as its grants tell. They count only where the checkpoint does not
	// list the container.
	Keys []gpu.DeviceKey
	// Open are the devices whose nodes it has, whoever gave them.
	Open []gpu.DeviceKey
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
// plugin registers again. Until a Reconcile has a checkpoint that was read after this call, each device
// with a living container is barred.
func (l *Ledger) Distrust() Changes {
	l.mu.Lock()
	l.distrusts++
	l.looked = time.Time{}
	view := NodeView{CheckpointErr: ErrDistrusted, ContainersErr: errNotRead, distrusts: l.distrusts}
	l.mu.Unlock()
	return l.Reconcile(view)
}

// Reconcile brings the ledger in line with the node, of which NewView began the view, and says what that changed.
// The rules are in the package's comment.
func (l *Ledger) Reconcile(view NodeView) Changes {
	l.leadAgain()
	l.mu.Lock()
	l.clamp()
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
	before := maps.Clone(l.records)
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

// clamp lets no holding begin in the future: after the clock was set back, its age would not grow for as long.
func (l *Ledger) clamp() {
	now := l.deps.Clock.Now()
	for _, key := range l.order {
		if h := l.records[key].Holding; h.Since.After(now) {
			h.Since = now
			l.put(h)
		}
	}
}

// revisit puts one key in the state that follows from what was found, and tells whether that changed it.
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
