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
// not seen in a separate goroutine. It makes no request to the kubelet.
//
// It must not import a front end, the agent, or k8s.io/kubernetes.
package kubeletsync
