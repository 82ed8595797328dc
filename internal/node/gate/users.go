package gate

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// users decides whether the GPUs of the node are in use by pods that are no validation pods.
type users struct {
	pods Pods
	// validations are the UIDs of the validation pods that were seen and still hold a device: a pod that is deleted leaves the list of pods
	// before it leaves the ledger.
	validations map[string]bool
	last        bool
	decided     bool
}

// use is whether a holder is in use.
type use int

const (
	free use = iota
	unknown
	used
)

// inUse reports whether a pod or a claim that is not the operator's holds a device. A pod that has ended does not, also while its container
// is being removed. While a holder is not known, which it is not for a
// moment after it has got its devices, the last answer holds; the first one is that they are in use, since a node in use must not be
// tainted.
func (u *users) inUse(holdings []gpu.Holding) bool {
	pods, _ := u.pods.Validations()
	now := map[string]bool{}
	for _, p := range pods {
		now[p.UID] = true
	}
	kept := map[string]bool{}
	most := free
	for i := range holdings {
		for _, uid := range uids(&holdings[i]) {
			if now[uid] || u.validations[uid] {
				kept[uid] = true
			}
			most = max(most, u.of(uid, kept))
		}
	}
	u.validations = kept
	for uid := range now {
		u.validations[uid] = true
	}
	switch {
	case most == used:
		u.last = true
	case most == free:
		u.last = false
	case !u.decided:
		u.last = true
	}
	u.decided = true
	return u.last
}

// uids returns the UIDs of the pods that use a holding; one that is empty for a holder that is not known yet, and none for maintenance.
func uids(h *gpu.Holding) []string {
	switch h.Holder.Kind {
	case gpu.HolderPod, gpu.HolderOrphan:
		return []string{h.Holder.PodUID}
	case gpu.HolderClaim:
		var all []string
		for _, pod := range h.Pods {
			all = append(all, pod.UID)
		}
		if len(all) == 0 {
			all = append(all, "")
		}
		return all
	}
	return nil
}

// of returns whether a pod uses devices for work.
func (u *users) of(uid string, validations map[string]bool) use {
	if uid == "" {
		return unknown
	}
	if validations[uid] {
		return free
	}
	switch pod, state := u.pods.Pod(uid); {
	case state == podwatch.Ended:
		return free
	case state == podwatch.Unknown && !pod.Static:
		return unknown
	}
	return used
}
