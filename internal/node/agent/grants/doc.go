// Package grants keeps the folders of grants: an empty folder per answer to Allocate, which goes into the container as a
// read-only mount. By the name of the mount's source in the OCI spec a container is identified when the kubelet has lost its
// checkpoint.
//
// It guarantees that no two answers get the same grant, that a grant is recorded in the ledger before its answer is returned,
// and that no folder is removed while the ledger or the kubelet's checkpoint has its grant, or within ten minutes.
//
// What wakes it: an Allocate that leaves few grants in advance. It writes only the folders. No Allocate waits for a file system:
// when more are needed at once than were made in advance, the answer has a grant whose folder is made right after it. A container
// starts later than that, and a container runtime creates the source of a mount that is missing.
//
// What it never waits for: the API server, the driver, the kubelet, the ledger.
//
// It must not import the agent, a package below it, or k8s.io/kubernetes.
package grants
