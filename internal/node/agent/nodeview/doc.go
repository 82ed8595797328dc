// Package nodeview reads from the node what the ledger's decisions are based on: the kubelet's checkpoint, the
// containers in which a process runs, the pods that have a cgroup, and the state of each pod. Its methods have the form
// of the fields of ledger.Deps.
//
// It guarantees that it writes nothing, and that [Reader.Ask] is its only request to the kubelet: within 200 ms (1 s
// when the watch has never seen the pod), only when an Allocate would otherwise be refused, and at most ten times per
// second. A PodResources List makes the kubelet forget the devices of an Allocate that is in progress (see the package
// comment of kubelet), so only Get is used. [Reader.Pod] answers from memory.
//
// Nothing wakes it; its only goroutine is that of one Ask. It never waits for the API server, except for Ask within that
// time.
//
// # When a pod has ended
//
// - The API server reports it (see podwatch), or
// - the API server does not respond, or the pod is static and its mirror pod is known, and the pod's cgroup, seen
// before, is gone. A pod whose cgroup was never seen has then ended when it has had none for 30 s since its devices
// were listed: the kubelet creates the cgroup before it pulls an image.
//
// It must not import a front end, the agent, or k8s.io/kubernetes.
package nodeview
