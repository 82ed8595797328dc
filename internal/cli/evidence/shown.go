package evidence

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// hiddenReason stands for a text that can have the names of pods.
const hiddenReason = "the reason can name pods that you may not list"

// addGPUNode adds what a GPUNode contains, without the holders of namespaces that Shows leaves out; how many those are is an Unread.
func (a API) addGPUNode(e *trace.Evidence, node *v1alpha1.GPUNode) {
	if a.Shows == nil {
		AddGPUNode(e, node)
		return
	}
	node = node.DeepCopy()
	source := gpuNodeSource(node.Name)
	hides := false
	shown := func(id string, holders []v1alpha1.Holder) []v1alpha1.Holder {
		kept := slices.DeleteFunc(slices.Clone(holders), func(h v1alpha1.Holder) bool { return h.Namespace != "" && !a.Shows(h.Namespace) })
		if hidden := len(holders) - len(kept); hidden > 0 {
			hides = true
			source.Field = id
			e.Unread = append(e.Unread, trace.Unread{Source: source, Why: fmt.Sprintf("holders of %s in namespaces whose pods you may not list: %d", id, hidden)})
		}
		return kept
	}
	var offers []*v1alpha1.DeviceOffer
	for i := range node.Status.Devices {
		d := &node.Status.Devices[i]
		d.Holders, offers = shown(d.UUID, d.Holders), append(offers, d.Offered)
		for k := range d.MIGDevices {
			m := &d.MIGDevices[k]
			m.Holders, offers = shown(m.UUID, m.Holders), append(offers, m.Offered)
		}
	}
	for _, offer := range offers {
		if hides && offer != nil && offer.Draining != "" {
			offer.Draining = hiddenReason
		}
	}
	AddGPUNode(e, node)
}
