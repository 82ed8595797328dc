// Package why says why a pod waits: one dominant reason in plain words, the evidence by groups of nodes, and the smallest changes with
// which the pod would fit.
//
// It looks at a pod, the nodes and the pods on them as values, and decides with the predicates of internal/core/fleet and its own ones for
// what has nothing to do with GPUs. It does not depend on what a scheduler says about the pod, but for one thing that only this knows:
// which places are reserved for a gang.
//
// It guarantees
//
//   - that the same values give the same answer, whatever their order;
//   - that a change is proposed only after the same predicates, asked again of the changed values, have said that the pod fits;
//   - that the first proposal is the smallest one: no set of the changes that it knows has a smaller weight (see ActKind). This holds while
//     the search is within its limit, Answer.Limited says when it was not;
//   - that no proposal means that no set of these changes helps.
//
// Which reason is the dominant one is decided in rank.go.
//
// ExplainGang answers for a gang as a whole, with the planner of internal/core/fleet/gang: a change is proposed only after the planner,
// asked again of the changed values, has a plan. For a gang whose waiting members request the same, without segments, the changes of one
// kind are the smallest ones with the members of at most one other gang; for the others no act of a set can be left out.
//
// The package does no I/O and reads no clock. It must not import anything but the standard library, internal/core/fleet,
// internal/core/fleet/gang, internal/core/phrase, internal/core/spelling and what is below them.
package why
