package why

import "github.com/berth-gpu/berth/internal/core/fleet"

// Input is what an answer is computed from. Nothing of it is changed.
type Input struct {
	Pod     Pod
	Nodes   []Node
	Holders []Holder
	// Claims evaluates the pod's ResourceClaims; nil when it has none.
	Claims Claims
	// Notes are what is not known, one sentence each, such as objects that may not be read.
	Notes []string
	// Now is in seconds; 0 stands for unknown.
	Now int64
	// Gone are the names of holders that are assumed to have ended, GPUs is the number of GPUs that the pod is assumed to request; 0 stands
	// for what it requests.
	Gone []string
	GPUs int
}

// Pod is the pod that waits.
type Pod struct {
	// Name is NAMESPACE/NAME.
	Name string
	// Requests are those of fleetview.Resources.Requests: the first one has the CPU and memory.
	Requests []fleet.Shape
	// Most is the largest number of devices of one resource that one container requests.
	Most int64
	// Others are requests for other resources by name, such as pods (1), ephemeral-storage or rdma/hca.
	Others map[string]int64
	// Created is in seconds; 0 stands for unknown.
	Created int64
	// Stops are what keeps schedulers from looking at the pod; the first one counts.
	Stops []Stop
	// Scheduler is the scheduler that the pod names; Unseen is true when no pod of the cluster shows that it runs.
	Scheduler string
	Unseen    bool
	// NotJudged are rules of the scheduler which the pod uses and which are not evaluated, such as volumes.
	NotJudged []string
	// Message is what a scheduler has said about the pod. It is shown, and decides nothing.
	Message string
	// Reserved is what the scheduler has said of places that are reserved for a gang; nil for nothing.
	Reserved *Reserved
}

// Reserved is a reservation of places for a gang.
type Reserved struct {
	Gang string
	// Priority is that of the gang: pods of a higher one get the places.
	Priority int32
	// Until is when it ends at the latest, Before when pods have to end that get the places, empty where no end suffices; as Kubernetes
	// writes times.
	Until  string
	Before string
}

// Stop is something that keeps schedulers from looking at a pod, or a pod from being created.
type Stop struct {
	Code Code
	// Names are the names of gates, the node of a bound pod, or the name of a suspended Job.
	Names []string
	// Quotas are the limits that would be exceeded.
	Quotas []Quota
	// Text is a message of the API server or of the controller, as evidence.
	Text string
}

// Quota is a limit of a ResourceQuota that a pod would exceed. The amounts are quantities as Kubernetes writes them.
type Quota struct {
	Name     string
	Resource string
	// Want is what a pod requests, Used what is used of Hard; Needed is the limit that would suffice, Over by how much it exceeds Hard.
	Want   string
	Used   string
	Hard   string
	Needed string
	Over   string
}

// Node is a node as the scheduler sees it.
type Node struct {
	fleet.Node
	// Kind describes nodes like it: "8 x NVIDIA H100 80GB HBM3".
	Kind string
	// Blocks are what keeps the pod from the node, whatever is free there.
	Blocks []Block
	// Others are its other resources, by name.
	Others map[string]Other
	// Silent are entries of GPUs which work, but which the node does not offer: its agent does not run, or has just changed them.
	Silent []int
	// Layouts are MIG devices that its GPUs do not have, but could have.
	Layouts []Layout
	// Note says in one sentence what of the node cannot be used.
	Note string
}

// Other is an amount of another resource.
type Other struct {
	All  int64
	Free int64
}

// Block is what keeps a pod from a node.
type Block struct {
	Code Code
	// Key is the taint, the label or the like. Blocks of one code and key are the same obstacle.
	Key string
	// Text is a further part of the reason, such as what a gate waits for.
	Text string
}

// Layout is a partition of a physical GPU into as many MIG devices of one resource as possible.
type Layout struct {
	Physical uint8
	Resource string
	Devices  int
}

// Holder is a pod on a node.
type Holder struct {
	// Name is NAMESPACE/NAME.
	Name string
	Node string
	// Devices are what it has of the node's entries.
	Devices []Devices
	// CPU is in thousandths of a core, Memory in MiB.
	CPU      int64
	Memory   int64
	Others   map[string]int64
	Traffic  fleet.Traffic
	Priority int32
	// Since is when it was created, in seconds.
	Since int64
	// Owner is what created it: "Job train".
	Owner string
	// Ending is true for a pod that is being deleted, Permanent for one that would be created again on the same node.
	Ending    bool
	Permanent bool
	// Claims is true for a pod that has ResourceClaims.
	Claims bool
	// Gang is the Key of the gang of which it is a member, or empty.
	Gang string
}

// Devices are devices of an entry of a node.
type Devices struct {
	Entry int
	Count int
}

// Claims evaluates the ResourceClaims of a pod.
type Claims interface {
	// Lacks returns what is in the way of the claims on a node when the holders with these names have ended and the claims are relaxed.
	// Nothing means that they can be allocated.
	Lacks(node string, gone, relaxed []string) []Block
	// Relaxations are what the claims could request instead, the smallest change first. Their keys are those of Lacks.
	Relaxations() []Relaxation
}

// Relaxation is another request of a pod's claims.
type Relaxation struct {
	// Key names it, Text is a clause: "its claim requested 2 devices instead of 4".
	Key  string
	Text string
}
