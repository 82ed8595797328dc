package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// ForgetLimit is how long the kubelet must not have listed a claim before the ledger releases its devices.
const ForgetLimit = 30 * time.Second

// releaseForgotten releases the devices of claims that the kubelet will not release: it unprepares only claims that its
// record lists, and it lists a claim before it prepares it. A claim can be missing there when the record was lost, or when
// a release could not be written before the agent ended. The claim keeps its devices while one of its pods may be alive,
// and for ForgetLimit after the last AcquireClaim. It is called with the mutex held.
func (l *Ledger) releaseForgotten(view *NodeView) {
	if view.Claims == nil || view.ContainersErr != nil {
		return
	}
	listed := map[string]bool{}
	for _, claim := range view.Claims {
		listed[claim.UID] = true
	}
	missing := map[string]bool{}
	for _, key := range l.order {
		if h := l.records[key].Holding; h.Holder.Kind == gpu.HolderClaim && !listed[h.Holder.ID] {
			missing[h.Holder.ID] = true
		}
	}
	maps.DeleteFunc(l.forgotten, func(uid string, _ time.Time) bool { return !missing[uid] })
	for uid := range missing {
		since, known := l.forgotten[uid]
		switch {
		case !known || since.After(view.began):
			l.forgotten[uid] = view.began
		case view.began.Sub(since) >= ForgetLimit && !l.claimUsed(uid, view):
			for _, key := range slices.Clone(l.order) {
				if holder := l.records[key].Holder; holder.Kind == gpu.HolderClaim && holder.ID == uid {
					l.remove(key)
				}
			}
			delete(l.forgotten, uid)
		}
	}
}

// claimed starts the time of ForgetLimit again. It is called with the mutex held.
func (l *Ledger) claimed(holder gpu.Holder) {
	if holder.Kind == gpu.HolderClaim {
		delete(l.forgotten, holder.ID)
	}
}

// claimUsed reports whether a pod of the claim may be alive: one of them is by what is known of pods, has a running container, or they are
// not known.
func (l *Ledger) claimUsed(uid string, view *NodeView) bool {
	for _, key := range l.order {
		h := &l.records[key].Holding
		if h.Holder.Kind != gpu.HolderClaim || h.Holder.ID != uid {
			continue
		}
		if h.Pods == nil || slices.ContainsFunc(h.Pods, func(pod gpu.Pod) bool { return l.deps.facts(pod.UID).State == PodLiving }) {
			return true
		}
		if slices.ContainsFunc(view.Containers, func(c Container) bool { return h.has(c.PodUID) }) {
			return true
		}
	}
	return false
}
