// Package grants keeps the folders of grants: an empty folder per response to Allocate, which is mounted read-only into
// the container. The name of the mount's source in the OCI spec identifies a container when the kubelet has lost its
// checkpoint.
//
// It guarantees that no two responses get the same grant, that a grant is recorded in the ledger before its response is
// returned, and that no folder is removed while the ledger or the kubelet's checkpoint has its grant, or within ten
// minutes.
//
// What wakes it: an Allocate that leaves few grants in advance. It writes only the folders. No Allocate waits for a
// file system: when a burst needs more than were created in advance, the response has a grant whose folder is created
// right after it. A container starts later than that, and a container runtime creates the source of a mount that is
// missing.
//
// What it never waits for: the API server, the driver, the kubelet, the ledger.
//
// It must not import the agent, a package below it, or k8s.io/kubernetes.
package grants
