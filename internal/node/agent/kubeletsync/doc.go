// Package kubeletsync keeps the ledger in line with the kubelet: it reads the kubelet's checkpoint, its record of prepared
// claims, the running containers and the state of the pods, and reconciles the ledger with them.
//
// It guarantees that the containers are read before the checkpoint and the claims (see ledger.NodeView), that a checkpoint
// which cannot be read releases nothing, that claims keep their pods while their record cannot be read, and that the
// folders of grants are cleaned only by a checkpoint that was read.
//
// It is woken by a change of the checkpoint, by a change of the node's pods, by a change of the ledger, and at least
// every two seconds. It writes the ledger, removes the folders of grants, and reports the problems of the sources
// "processes", "checkpoint", "kubelet directory", "claim pods", "pods" and "conflicts".
//
// It never waits for the API server: it uses the last state of the watch of pods, and requests pods that the watch has
// not seen in a separate goroutine. It makes no request to the kubelet but that of [Reader.Ask].
//
// A [Reader] reads from the node what the ledger's decisions are based on: the kubelet's checkpoint, the containers in which a process
// runs, the pods that have a cgroup, and the state of each pod. Its methods have the form of the fields of ledger.Deps. It writes nothing,
// and [Reader.Ask] is its only request to the kubelet: within 200 ms (1 s when the watch has never seen the pod, 2 s while the kubelet has
// not answered), only when an Allocate would otherwise be refused, and at most ten times per second. A PodResources List makes the kubelet
// forget the devices of an Allocate that is in progress (see the package comment of kubelet), so only Get is used. [Reader.Pod] answers
// from memory.
//
// [Grants] are empty folders, one per response to Allocate, which is mounted read-only into the container. The name of the mount's source
// in the OCI spec identifies a container when the kubelet has lost its checkpoint. No two responses get the same grant, a grant is recorded
// in the ledger before its response is returned, and no folder is removed while the ledger or the kubelet's checkpoint has its grant, or
// within ten minutes. No Allocate waits for a file system: when a burst needs more than were created in advance, the response has a grant
// whose folder is created right after it. A container starts later than that, and a container runtime creates the source of a mount that is
// missing.
//
// # When a pod has ended
//
// - The API server reports it (see podwatch), or
// - the API server does not respond, or the pod is static and its mirror pod is known, and the pod's cgroup, seen
// before, is gone. A pod whose cgroup was never seen has then ended when it has had none for 30 s since its devices
// were listed: the kubelet creates the cgroup before it pulls an image.
//
// It must not import a front end, the agent, or k8s.io/kubernetes.
package kubeletsync
