package evidence

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// hiddenReason stands for a text that can have the names of pods.
const hiddenReason = "the reason can name pods that you may not list"

// addGPUNode adds what a GPUNode contains, without the holders of namespaces that Shows leaves out; how many those are is an Unread. Of a
// node without the device that the evidence is about, a UUID or the beginning of one, no holders are added, so that Shows is asked about
// the namespaces of one node, and not of the fleet.
func (a API) addGPUNode(e *trace.Evidence, node *v1alpha1.GPUNode, device gpu.UUID) {
	if a.Shows == nil {
		addGPUNode(e, node)
		return
	}
	node = node.DeepCopy()
	source := gpuNodeSource(node.Name)
	hides, concerned := false, hasDevice(node, string(device))
	shown := func(id string, holders []v1alpha1.Holder) []v1alpha1.Holder {
		if !concerned {
			hides = hides || len(holders) > 0
			return nil
		}
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
	addGPUNode(e, node)
	if hides {
		e.Withheld = append(e.Withheld, gpuNodeSource(node.Name))
	}
}

// hasDevice reports whether the UUID of a device of the node begins with id.
func hasDevice(node *v1alpha1.GPUNode, id string) bool {
	return slices.ContainsFunc(node.Status.Devices, func(d v1alpha1.GPUDevice) bool {
		return strings.HasPrefix(d.UUID, id) ||
			slices.ContainsFunc(d.MIGDevices, func(m v1alpha1.MIGDevice) bool { return strings.HasPrefix(m.UUID, id) })
	})
}
