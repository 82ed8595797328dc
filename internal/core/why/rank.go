package why

import "slices"

// Code is a stable name of a reason.
type Code string

// Reasons that concern the pod alone. They come before all others, in this order.
const (
	NotFound  Code = "NotFound"
	Deleted   Code = "BeingDeleted"
	Ended     Code = "Ended"
	Bound     Code = "Bound"
	Suspended Code = "Suspended"
	QuotaFull Code = "QuotaExceeded"
	NoPods    Code = "NoPods"
	Gated     Code = "Gated"
	// Hidden: the objects that would show it may not be read.
	Hidden Code = "NotVisible"
	// NoClaim: a ResourceClaim or its template does not exist.
	NoClaim Code = "ResourceClaimMissing"
)

// Fits, and the reasons for a whole cluster.
const (
	Fits        Code = "Fits"
	Reserves    Code = "Reserved"
	NoScheduler Code = "NoScheduler"
	NoNodes     Code = "NoNodes"
	NoGPUs      Code = "NoGPUs"
	NoProfile   Code = "NoMIGProfile"
	Scattered   Code = "GPUsScattered"
)

// Reasons on a node.
const (
	NoResource  Code = "NoResource"
	NoOther     Code = "NoOtherResource"
	NoDevices   Code = "NoDevicesForClaim"
	NoSuchClass Code = "DeviceClassMissing"
	ClaimRule   Code = "ClaimSelectsNothing"

	WrongModel  Code = "WrongModel"
	Selector    Code = "NodeSelector"
	Taint       Code = "Taint"
	FewGPUs     Code = "TooFewGPUs"
	Many        Code = "SeveralRefused"
	LittleCPU   Code = "TooLittleCPU"
	LittleRAM   Code = "TooLittleMemory"
	LittleOther Code = "TooLittleOfResource"
	ClaimTaint  Code = "DeviceTaint"
	ClaimPlace  Code = "ClaimOnOtherNode"

	Health    Code = "GPUsUnhealthy"
	Sick      Code = "NodeUnhealthy"
	AgentDown Code = "AgentDown"
	NotReady  Code = "NodeNotReady"
	Cordoned  Code = "NodeCordoned"
	ClaimLink Code = "ClaimConstraint"
	ClaimPool Code = "DevicesNotPublished"

	InUse        Code = "GPUsInUse"
	ClaimInUse   Code = "DevicesInUse"
	Contended    Code = "MemoryBandwidth"
	CPUInUse     Code = "CPUInUse"
	MemoryInUse  Code = "MemoryInUse"
	OtherInUse   Code = "ResourceInUse"
	PodLimit     Code = "PodLimit"
	NotValidated Code = "NodeNotValidated"
)

// The dominant reason.
//
// What concerns the pod alone (a gate, a quota, a deletion) comes before everything: no node matters until it has ended. Of what is
// in the way on the nodes, the dominant reason is that of the nodes that are nearest to fitting, not that of most nodes: three nodes whose
// GPUs are in use say more than 200 nodes without GPUs. How near a node is, is decided by
//
//  1. the rank of the worst thing in the way there, as listed below: the GPUs are free and something beside them lacks (1), other pods have
//     the GPUs (2), something has to be repaired or released (3), only another request or other rules of the pod change it (4), the node
//     is of another kind (5);
//  2. the number of things that are in the way.
//
// Of the nearest nodes the reason that most of them have is the dominant one; among equal numbers the one that is listed first here. The
// reason of a node is the worst thing in the way there, and of equally bad ones the first in this list. A request that no node could serve
// if all were empty has rank 4 or 5 everywhere, so that this reason is dominant before the state of the cluster is looked at.
var order = []struct {
	rank  int
	codes []Code
}{
	{5, []Code{NoSuchClass, NoResource, NoDevices, NoOther}},
	{4, []Code{WrongModel, FewGPUs, Many, ClaimRule, ClaimPlace, ClaimTaint, LittleCPU, LittleRAM, LittleOther, Selector, Taint}},
	{3, []Code{Sick, Health, NotReady, AgentDown, ClaimPool, ClaimLink, Cordoned}},
	{2, []Code{InUse, ClaimInUse, Contended}},
	{1, []Code{CPUInUse, MemoryInUse, OtherInUse, PodLimit, NotValidated}},
}

// place returns the rank of a reason and its place in the order; a code that is not listed is the worst.
func place(code Code) (rank, at int) {
	for _, line := range order {
		if i := slices.Index(line.codes, code); i >= 0 {
			return line.rank, at + i
		}
		at += len(line.codes)
	}
	return 5, -1
}
