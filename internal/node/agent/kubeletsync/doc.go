// Package kubeletsync keeps the ledger in line with the kubelet: it reads the kubelet's checkpoint, the containers that live
// and what is known of the pods, and reconciles the ledger with that.
//
// It is woken by a change of the checkpoint, by a change of the node's pods, by a change of the ledger, and at least every two
// seconds. It writes the ledger, and makes and removes the folders of grants. It asks the kubelet nothing on this path: a PodResources List makes the
// kubelet forget the devices of an Allocate that is under way (see the package comment of kubelet), and Get is
// for the one case in which an Allocate would have to be refused, outside the ledger's mutex and within 200 ms.
// A comparison never waits for the API server: what the watch of pods last said counts. Ask may, within its 200 ms.
//
// # When a pod has ended
//
//   - The API server says so (see podwatch), or
//   - the API server does not answer, or the pod is static and its mirror pod is known, and the pod's cgroup, seen
//     before, is gone. A pod whose cgroup was never seen has then ended when it has had none for 30 s since its devices were listed: the kubelet
//     makes the cgroup before it pulls an image.
//
// It must not import a front end, the agent, or k8s.io/kubernetes.
package kubeletsync
