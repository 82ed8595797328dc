// Package grants keeps the folders of grants: an empty folder per answer to Allocate, which goes into the container as a
// read-only mount. By the name of the mount's source in the OCI spec a container is identified when the kubelet has lost its
// checkpoint.
//
// It guarantees that no two answers get the same grant, that a grant is recorded in the ledger before its answer is returned,
// and that no folder is removed while the ledger or the kubelet's checkpoint has its grant, or within ten minutes.
//
// Nothing wakes it: kubeletsync calls Fill and Clean. It writes only the folders. An Allocate waits for a file system only
// when more grants are needed at once than Fill makes in advance.
//
// It must not import the agent, a package below it, or k8s.io/kubernetes.
package grants
