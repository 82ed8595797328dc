// Package gangplan turns a gang of a cluster into the question that internal/core/fleet/gang answers: its members by classes, its levels of
// topology, and how many members the rules of Kubernetes let run on a node. The scheduler's plugin for gangs and `berth why` share it, so
// that they agree.
//
// It guarantees that equal pods, nodes and levels give the same question, and that bad input is one sentence for people and never an
// error: everything in a pod is written by a tenant.
//
// It does no I/O, reads no clock and starts no goroutine. It must not import anything of Berth but internal/cluster/gangview,
// internal/core/fleet and internal/core/fleet/gang, of Kubernetes only its types and k8s.io/component-helpers, and nothing of its
// scheduler.
package gangplan
