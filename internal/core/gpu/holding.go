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

// Pod names a pod. The JSON names are those of the ledger's file.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Holding is one holder's hold on one device.
type Holding struct {
	Key    DeviceKey `json:"key"`
	Holder Holder    `json:"holder"`
	Since  time.Time `json:"since"`
	// Placement is where a MIG device that Key names by UUID is, as its holder knows it; zero when that is not known.
	Placement Placement `json:"placement,omitzero"`
	// Profile is that of the MIG device that a claim has, such as 1g.10gb; empty when it is not known, and for other devices.
	Profile string `json:"profile,omitempty"`
	// TimeSlice is the time slice that a claim wants for its whole GPU: short, medium, long, or TimeSliceDefault. It is empty when it is
	// not known what the claim wants, and for other holders and devices.
	TimeSlice string `json:"timeSlice,omitempty"`
	// MPS are the limits of the MPS daemon that a claim wants for its whole GPU; zero when it wants none, and while TimeSlice is empty.
	MPS MPSLimits `json:"mps,omitzero"`
	// Requests are the names of a claim's requests for which it has the device, sorted; empty for other holders.
	Requests []string `json:"requests,omitempty"`
	// Pods are those that may use a claim's devices, sorted by UID: all holdings of a claim have the same. They are empty for other
	// holders.
	Pods []Pod `json:"pods,omitempty"`
}

// MPSLimits are the limits that an MPS daemon enforces on each client process. The zero value means that no daemon is wanted.
type MPSLimits struct {
	// PinnedMemoryMiB limits the device memory; -1 for no limit.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitempty"`
	// ActiveThreadPercentage limits the multiprocessors, 1 to 100.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// SingleUser lets the clients of a second UID wait while those of a first run.
	SingleUser bool `json:"singleUser,omitempty"`
}

// MaxMPSMemoryMiB is the largest memory limit that an MPS daemon is given, 1 PiB.
const MaxMPSMemoryMiB = 1 << 30

// Wanted reports whether a daemon with these limits is wanted.
func (l MPSLimits) Wanted() bool { return l.ActiveThreadPercentage > 0 }

// Valid reports whether no daemon is wanted, or one with limits that can be set.
func (l MPSLimits) Valid() bool {
	if l == (MPSLimits{}) {
		return true
	}
	return (l.PinnedMemoryMiB == -1 || l.PinnedMemoryMiB > 0) && l.ActiveThreadPercentage >= 1 && l.ActiveThreadPercentage <= 100
}

// TimeSliceDefault is the driver's own time slice.
const TimeSliceDefault = "default"

// Located is a device with the placement of its MIG device.
type Located struct {
	Key DeviceKey
	// At is where the MIG device is that Key names by UUID; zero when that is not known. It has no meaning for other keys.
	At Placement
}

// Located returns the device that is held.
func (h *Holding) Located() Located { return Located{Key: h.Key, At: h.Placement} }

// slices returns the memory slices that a MIG device has; false when they are not known.
func (d Located) slices() (Placement, bool) {
	if d.Key.Placement.Known() {
		return d.Key.Placement, true
	}
	return d.At, d.At.Known()
}

// Overlaps reports whether two devices cannot be held by different holders at the same time: they share silicon and are not two
// replicas of one device. It is the only rule about that:
//
//   - Devices of two GPUs never overlap.
//   - A device that is not shared overlaps with each of its replicas, and two replicas do not.
//   - A whole GPU, or a replica of it, overlaps with all its MIG devices, which exist or not.
//   - Two MIG devices with UUIDs exist at the same time, so they do not overlap.
//   - Otherwise one is not made yet. They overlap if they have a memory slice in common, or if the slices of one are not known.
func (d Located) Overlaps(other Located) bool {
	a, b := d.Key, other.Key
	switch {
	case a.GPU != b.GPU:
		return false
	case a.Unshared() == b.Unshared():
		return a.Share == b.Share || a.Share == 0 || b.Share == 0
	case a.Whole() || b.Whole():
		return true
	case a.MIG != "" && b.MIG != "":
		return false
	}
	mine, known := d.slices()
	others, both := other.slices()
	return !known || !both || mine.Start-others.Start < others.Size && others.Start-mine.Start < mine.Size
}

// Overlaps is Located.Overlaps for devices whose placements are not known, except for those that the keys have.
func (k DeviceKey) Overlaps(other DeviceKey) bool {
	return Located{Key: k}.Overlaps(Located{Key: other})
}

// Whole reports whether the key is that of a whole GPU or a replica of it.
func (k DeviceKey) Whole() bool { return k.MIG == "" && !k.Placement.Known() }

// Unshared returns the device of which the key may be a replica.
func (k DeviceKey) Unshared() DeviceKey {
	k.Share = 0
	return k
}

// HolderNames names the holders of a device, of a part of it and of what it is a part of, sorted. Maintenance is no holder.
func HolderNames(holdings []Holding, key DeviceKey) []string {
	var names []string
	for _, h := range holdings {
		if h.Holder.Kind != HolderMaintenance && h.Located().Overlaps(Located{Key: key.Unshared()}) {
			names = append(names, h.Holder.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
