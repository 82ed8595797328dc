package fleetview

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Held is devices of a node that are free once each of some pods has ended: one pod has the devices of a device plugin, several can share
// those of a claim.
type Held struct {
	// Pods are their UIDs, at least one.
	Pods []string
	// GPUs are entries of the node. One device of each is free then.
	GPUs fleet.GPUSet
	// Traffic is what the pods say that they need much of.
	Traffic fleet.Traffic
}

// EndsWith returns the positions of those with whose end the devices are free, each once, by the position of each pod; false where a pod
// has none, which goes on.
func (h *Held) EndsWith(position func(uid string) (int, bool)) (positions []int, ends bool) {
	for _, uid := range h.Pods {
		at, found := position(uid)
		if !found {
			return nil, false
		}
		if !slices.Contains(positions, at) {
			positions = append(positions, at)
		}
	}
	return positions, len(positions) > 0
}

// Held lists what pods of the node hold, first what the GPUNode reports, then what was predicted. What something else holds, such as
// maintenance, or a claim whose pods have ended, is not part of it: the end of no pod makes it free.
func (v *View) Held() []Held {
	traffic := map[string]fleet.Traffic{}
	for i := range v.pods {
		sum := fleet.Traffic(0)
		for k := range v.pods[i].Requests {
			sum |= v.pods[i].Requests[k].Traffic
		}
		traffic[v.pods[i].UID] = sum
	}
	list, reported := []Held(nil), map[string]int{}
	if v.hardware != nil && !v.Counted {
		for i := range v.hardware.entries {
			for _, h := range v.hardware.entries[i].holders {
				made := Held{GPUs: fleet.GPUSet(0).With(i)}
				for _, uid := range h.pods {
					if sum, alive := traffic[uid]; alive {
						made.Pods = append(made.Pods, uid)
						made.Traffic |= sum
						reported[uid] = 1
					}
				}
				if len(made.Pods) > 0 {
					list = append(list, made)
				}
			}
		}
	}
	for i := range v.pods {
		uid := v.pods[i].UID
		sets := v.Holdings[uid].GPUs
		// The first set of a pod that is reported, in whole or in part, is what is reported.
		for _, gpus := range sets[min(reported[uid], len(sets)):] {
			if gpus != 0 {
				list = append(list, Held{Pods: []string{uid}, GPUs: gpus, Traffic: traffic[uid]})
			}
		}
	}
	return list
}
