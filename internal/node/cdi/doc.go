// Package cdi writes the node's CDI spec: what a container runtime has to add to a container with GPUs of this node
// (device nodes, driver files, hooks).
//
// It guarantees: the spec is a projection of an inventory snapshot and the driver's files, the same bytes for the same
// input; the file is the old or the new spec at any moment, never a part of one; what does not exist on the host is
// left out of the spec, because one missing mount or hook keeps every GPU container from starting; the file is
// rewritten when it differs, and removed only by Remove.
//
// Device nodes come from the snapshot. What a vendor adds to them (driver files, hooks, environment) comes from
// [VendorEdits], which a package of the vendor implements.
//
// The configuration adds Extras: the device nodes of GPUDirect Storage, GDRCopy, Mellanox OFED and IMEX are in the
// edits of every container with a device, since they belong to the node and not to a GPU; the pipes of a GPU's MPS
// daemon are a device of their own, mps-UUID, requested beside the GPU's.
//
// A [Syncer] keeps the spec, and an [InjectionSource] says what a container gets with each device.
//
// It must not import the inventory, the ledger, a front end, Kubernetes, a vendor's package or the container toolkit, or call NVML.
package cdi

// The qualified names of Berth's devices: "k8s.berth.dev/gpu=<name>". A CDI vendor of its own distinguishes them from specs that
// the container toolkit or the GPU operator write on the same node: runtimes resolve no device that two specs have.
const (
	Vendor = "k8s.berth.dev"
	Class  = "gpu"
	Kind   = Vendor + "/" + Class
	// All is the name of the device with every GPU and MIG device of the node.
	All = "all"
	// FileName is the spec's name in the CDI directory.
	FileName = Vendor + "-" + Class + ".json"
)

// QualifiedName returns the name by which the kubelet and the container runtime request a device: id is a GPU or MIG UUID, an
// index ("0", "0:1") or "all".
func QualifiedName(id string) string { return Kind + "=" + id }
