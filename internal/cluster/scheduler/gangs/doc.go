// Package gangs is the scheduler's plugin BerthGangs: it places pods that are of use only together, by the labels berth.dev/pod-group and
// berth.dev/min-member or by a PodGroup of scheduler-plugins or Volcano. Pods with spec.schedulingGroup are not its own: they belong to
// Kubernetes' pod group cycle.
//
// A gang waits before the queue (PreEnqueue) until its least number of members exist. The first member whose turn it is plans the whole
// gang (PreFilter), and each gets the node of the plan. A plan that takes long is made beside the cycles, on a copy of the state (job),
// and checked in the cycle of the member that uses it. Until they are reserved, their places are held: no other pod gets them (Filter).
// None is bound before all of the plan are reserved (Permit, Bind).
//
// It guarantees
//
//   - that no member is bound before all members of its plan are reserved. When one is refused, all are released, and the gang waits as a
//     whole;
//   - that a gang that is bound in part, since a binding failed or a scheduler ended in between, is completed first, its places being
//     held, or released when no further member was bound for Limits.Release: its members are deleted. Only a process that has run a
//     scheduling cycle does so, since others are standbys. A gang that was whole and has lost members goes on, and so does one of another
//     scheduler;
//   - that a gang that cannot be placed holds nothing, that its members carry the reason in their condition, and that one of which each
//     plan is refused waits longer and longer between plans, so that it takes no time from others;
//   - that a gang that does not fit ends pods of lower priorities only when all of it fits then, and that the first gang in line that
//     waits for long gets a reservation: until its start no other pod that ends later takes its places. Where the start is not known,
//     reservations last at most 5 minutes of any 30;
//   - that times of objects are compared only with the API server's clock, which the keeper reads, and never with that of this process;
//   - that who is refused because of what is held is tried again when that ends;
//   - that a gang with bad input waits with one event that says what is wrong, and delays nothing else;
//   - that a cycle plans no more than Limits.CycleSteps, besides some microseconds for each member whose place it checks, and that no lock
//     which the cycles of other pods take is held while a gang is planned.
//
// It must not import anything of Berth but internal/cluster/fleetview, gangplan, gangview, the packages of the scheduler below it, and
// internal/core, and of Kubernetes' scheduler only the public framework.
package gangs
