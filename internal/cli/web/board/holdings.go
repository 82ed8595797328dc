package board

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// holdings are what the pods of a namespace hold.
type holdings struct {
	v1alpha1.BoardNamespace
	pods map[string]bool // by UID
	// more is how many pods use the claims besides those that the GPUNodes name, by namespace and name of the claim.
	more map[string]int
	idle int
	// unmeasured is true where a device has no measurement.
	unmeasured bool
}

// count adds a device to what the namespaces of its holders have. add counts a device that is not shared; a shared one counts its replicas.
func (b *builder) count(holders []v1alpha1.Holder, d *v1alpha1.BoardDevice, measured bool, add func(*v1alpha1.BoardNamespace)) {
	type key struct {
		namespace string
		share     int
	}
	seen := map[key]bool{}
	for i := range holders {
		h := &holders[i]
		if h.Namespace == "" {
			continue
		}
		name := h.Namespace
		if !b.shows(name) {
			name = ""
		}
		entry := b.held[name]
		if entry == nil {
			entry = &holdings{BoardNamespace: v1alpha1.BoardNamespace{Name: name}, pods: map[string]bool{}, more: map[string]int{}}
			b.held[name] = entry
		}
		entry.addPods(h)
		// A device that several containers of a namespace share is one share for each of them, and one GPU or MIG device otherwise.
		if k := (key{name, h.Share}); !seen[k] {
			seen[k] = true
			if d.Replicas > 0 {
				entry.Shares++
			} else {
				add(&entry.BoardNamespace)
			}
			entry.unmeasured = entry.unmeasured || !measured
			entry.idle += boolean(d.Idle)
		}
	}
}

// addPods counts the pods of a holder.
func (n *holdings) addPods(h *v1alpha1.Holder) {
	if h.PodUID != "" {
		n.pods[h.PodUID] = true
		return
	}
	for _, pod := range h.Pods {
		n.pods[pod.UID] = true
	}
	n.more[h.Namespace+"/"+h.Claim] = max(n.more[h.Namespace+"/"+h.Claim], h.MorePods)
}

// namespacesHeld lists what the namespaces hold that the filter selects, the hidden ones, which have no name, last.
func (b *builder) namespacesHeld() []v1alpha1.BoardNamespace {
	list := []v1alpha1.BoardNamespace{}
	for name, entry := range b.held {
		if b.in.Filter.Namespace != "" && b.in.Filter.Namespace != name {
			continue
		}
		entry.Pods = len(entry.pods)
		for _, more := range entry.more {
			entry.Pods += more
		}
		if !entry.unmeasured {
			entry.Idle = &entry.idle
		}
		list = append(list, entry.BoardNamespace)
	}
	slices.SortFunc(list, func(x, y v1alpha1.BoardNamespace) int {
		return cmp.Or(cmp.Compare(boolean(x.Name == ""), boolean(y.Name == "")), strings.Compare(x.Name, y.Name))
	})
	return list
}
