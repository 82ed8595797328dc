// Package agents lets an upgrade of the agents go on where a node has no place for a second pod. The DaemonSet starts the new agent beside
// the old one, and its pods never preempt others: on a node whose number of pods is full the new one would wait until a pod of a user ends.
// There the old agent ends first.
//
// What it guarantees:
//   - It ends an agent only if one of a newer revision of the same DaemonSet waits for this very node, and the scheduler says that
//     the number of pods is what is in the way. Where CPU or memory are missing too, the end of the old agent may not be enough: it stays.
//   - It ends no further agent while as many nodes as [most] allows are without a ready one, so that a version that does not work takes
//     the GPUs of only these nodes. Fewer that do not become ready delay no other node.
//   - It names the agent by its UID: a pod of the same name that came later stays.
//
// What wakes it: an agent that waits for such a place; once per second while one does. At rest it requests and writes nothing. It writes
// deletions of pods in the operator's namespace, and Events about the agents that wait. It holds no state.
//
// It must not import another concern, internal/node or internal/hardware.
package agents
