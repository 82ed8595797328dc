package ledger

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// observe reads the data for a decision about the keys, and returns with the mutex held. It reads the containers of
// those pods that can have one on the keys, and the checkpoint. Only when it cannot name these pods, it reads the
// containers of all. Dropped are entries that the kubelet is known to have removed from its memory.
func (l *Ledger) observe(keys []gpu.DeviceKey, dropped []Question) NodeView {
	if view, ok := l.observePods(keys, dropped); ok {
		l.mu.Lock()
		if pods, known := l.suspects(keys, view.stamp); known && subset(pods, view.pods) {
			return view
		}
		l.mu.Unlock() // A holding has changed since.
	}
	view := l.observeAll(dropped)
	l.mu.Lock()
	return view
}

// observeAll reads the containers of all pods and then the checkpoint; in this order, as for NodeView. It is called
// without the mutex.
func (l *Ledger) observeAll(dropped []Question) NodeView {
	view := l.NewView()
	view.dropped = dropped
	view.ContainersErr = errNotRead
	if l.deps.Look != nil {
		view.Containers, view.ContainersErr = l.deps.Look()
		if view.ContainersErr != nil {
			l.deps.Log.Warn("Could not read the running containers for the ledger", "error", view.ContainersErr)
		}
	}
	l.readAssignments(&view)
	return view
}

// observePods is observe for the pods that the ledger and the checkpoint name; false when others have to be read, too.
// It reads the checkpoint before the containers, to name the pods, and again after them, since it has to be read as
// NodeView describes.
func (l *Ledger) observePods(keys []gpu.DeviceKey, dropped []Question) (NodeView, bool) {
	if l.deps.LookIn == nil || l.deps.Assigned == nil {
		return NodeView{}, false
	}
	view := l.NewView()
	view.dropped = dropped
	l.mu.Lock()
	pods, known := l.suspects(keys, view.stamp)
	l.mu.Unlock()
	if !known {
		return NodeView{}, false
	}
	before, _ := l.deps.Assigned()
	view.pods = union(pods, podsOf(before, keys)...)
	if len(view.pods) > 0 {
		var err error
		if view.Containers, err = l.deps.LookIn(view.pods); err != nil {
			l.deps.Log.Warn("Could not read the running containers of pods for the ledger", "pods", view.pods, "error", err)
			return NodeView{}, false
		}
	}
	l.readAssignments(&view)
	view.partial = true
	return view, subset(podsOf(view.Assignments, keys), view.pods)
}

func (l *Ledger) readAssignments(view *NodeView) {
	view.CheckpointErr = errNotRead
	if l.deps.Assigned != nil {
		view.Assignments, view.CheckpointErr = l.deps.Assigned()
	}
	pods := slices.Clone(view.pods)
	for _, a := range view.Assignments {
		pods = append(pods, a.PodUID)
	}
	slices.Sort(pods)
	for _, uid := range slices.Compact(pods) {
		if l.deps.facts(uid).State == PodEnded {
			view.Pods = append(view.Pods, NodePod{UID: uid, Ended: true})
		}
	}
}

// suspects are the pods that can have a container on one of the keys, or on another size of it: the holder, and those
// that the last Reconcile found there. It returns false when that can be any pod: when the ledger is blind, and when
// the holder is not known yet. A container of a holder that is not known starts after the kubelet has written its
// checkpoint, so that there is none as long as the stamp is that of the grant. It is called with the mutex held.
func (l *Ledger) suspects(keys []gpu.DeviceKey, stamp string) (pods []string, known bool) {
	if l.blind() {
		return nil, false
	}
	for _, key := range keys {
		for _, other := range onGPU(l.order, key.GPU) {
			r := l.records[other]
			// An orphan with another replica is in the way under another resource's name.
			orphan := r.Holder.Kind == gpu.HolderOrphan && other.Unshared() == key.Unshared()
			if other != key && !other.Overlaps(key) && !orphan || !r.Holder.OfPod() {
				continue
			}
			switch {
			case r.Holder.PodUID != "":
				pods = append(pods, r.Holder.PodUID)
			case stamp == "" || r.stamp != stamp:
				return nil, false
			}
			pods = append(pods, r.users...)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods), true
}

// noteUsers keeps which pods were found on each device.
func (l *Ledger) noteUsers(j *join) {
	if j.view.ContainersErr != nil {
		return
	}
	for key, r := range l.records {
		r.users = r.users[:0]
		for pod := range j.live[key] {
			r.users = append(r.users, pod)
		}
	}
}

// podsOf are the pods that the entries list with one of the keys, sorted.
func podsOf(assignments []Assignment, keys []gpu.DeviceKey) []string {
	var pods []string
	for _, a := range assignments {
		if slices.ContainsFunc(a.Keys, func(key gpu.DeviceKey) bool { return slices.ContainsFunc(keys, key.Overlaps) }) {
			pods = append(pods, a.PodUID)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// subset reports whether a sorted list has all elements of another one.
func subset(of, list []string) bool {
	return !slices.ContainsFunc(of, func(text string) bool {
		_, found := slices.BinarySearch(list, text)
		return !found
	})
}
