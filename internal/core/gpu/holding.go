package gpu

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// HolderKind says on whose behalf a device is held.
type HolderKind string

// The kinds of holders.
const (
	// HolderPod is a pod to which the kubelet's device manager allocated the device.
	HolderPod HolderKind = "Pod"
	// HolderClaim is a ResourceClaim that the DRA driver prepared.
	HolderClaim HolderKind = "Claim"
	// HolderMaintenance is Berth itself, which changes the device.
	HolderMaintenance HolderKind = "Maintenance"
	// HolderOrphan is a pod with a container that uses the device although the kubelet does not list it.
	HolderOrphan HolderKind = "Orphan"
)

// Holder is who holds a device. The JSON names are those of the ledger's file, which an agent of another version reads.
type Holder struct {
	Kind HolderKind `json:"kind"`
	// ID is the UID of a ResourceClaim, or names the maintenance; it is empty for the other kinds.
	ID string `json:"id,omitempty"`
	// PodUID is empty for a holding that is still pending: its pod is not known yet.
	PodUID string `json:"podUID,omitempty"`
	// Namespace and Name are those of the pod, or of the ResourceClaim; empty when they are not known.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"pod,omitempty"`
	// Container is the one that uses the device now, or the first of those that may.
	Container string `json:"container,omitempty"`
	// Resource is the name under which the kubelet allocated the device, such as nvidia.com/gpu.
	Resource string `json:"resource,omitempty"`
}

// OfPod reports whether the holder is a pod, listed by the kubelet or not.
func (h Holder) OfPod() bool { return h.Kind == HolderPod || h.Kind == HolderOrphan }

// Same reports whether two holders are the same claim, maintenance or pod.
func (h Holder) Same(other Holder) bool {
	if h.Kind != other.Kind || h.ID != other.ID {
		return false
	}
	return !h.OfPod() || h.PodUID == other.PodUID
}

// String names the holder: NAMESPACE/NAME of a pod where the name is known, otherwise its UID; a
// ResourceClaim likewise; or the maintenance.
func (h Holder) String() string {
	name := h.Name
	if h.Name != "" && h.Namespace != "" {
		name = h.Namespace + "/" + h.Name
	}
	switch {
	case h.Kind == HolderClaim:
		return strings.TrimSpace("ResourceClaim " + cmp.Or(name, h.ID))
	case h.Kind == HolderMaintenance && h.ID == "":
		return "maintenance"
	case h.Kind == HolderMaintenance:
		return "maintenance (" + h.ID + ")"
	case name != "":
		return name
	case h.PodUID != "":
		return "pod " + h.PodUID
	case h.Kind == HolderOrphan:
		return "an unknown pod"
	}
	return "a pod that is being admitted"
}

// Holding is one holder's hold on one device.
type Holding struct {
	Key    DeviceKey `json:"key"`
	Holder Holder    `json:"holder"`
	Since  time.Time `json:"since"`
}

// Overlaps reports whether two devices cannot be held by different holders at the same time: they share silicon and are not
// two replicas of one device. A device that is not shared overlaps with each of its replicas.
func (k DeviceKey) Overlaps(other DeviceKey) bool {
	switch {
	case k.GPU != other.GPU:
		return false
	case k.MIG != other.MIG:
		return k.MIG == "" || other.MIG == ""
	}
	return k.Share == other.Share || k.Share == 0 || other.Share == 0
}

// Unshared returns the device of which the key may be a replica.
func (k DeviceKey) Unshared() DeviceKey { return DeviceKey{GPU: k.GPU, MIG: k.MIG} }

// HolderNames names the holders of a device, of a part of it and of what it is a part of, sorted. Maintenance is no holder.
func HolderNames(holdings []Holding, key DeviceKey) []string {
	var names []string
	for _, h := range holdings {
		if h.Holder.Kind != HolderMaintenance && key.Unshared().Overlaps(h.Key) {
			names = append(names, h.Holder.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
