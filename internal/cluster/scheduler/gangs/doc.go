// Package gangs is the scheduler's plugin BerthGangs: it places pods that are of use only together, by the labels berth.dev/pod-group and
// berth.dev/min-member or by a PodGroup of scheduler-plugins or Volcano. Pods with spec.schedulingGroup are not its own: they belong to
// Kubernetes' pod group cycle.
//
// A gang waits before the queue (PreEnqueue) until its least number of members exist. The first member whose turn it is plans the whole
// gang (PreFilter), and each gets the node of the plan. A plan that takes long is made beside the cycles, on a copy of the state (job),
// and checked in the cycle of the member that uses it. Until they are reserved, their places are held: no other pod gets them (Filter).
// None is bound before all of the plan are reserved (Permit, Bind).
//
// A gang is in one stage (stage.go), and what happens to it moves it to another one:
//
//	event                                          method                                    stage after it
//	a pod comes, changes or is deleted             set, remove, gone (state.go, gone.go)     as before; forgetRefusal: unplanned
//	a PodGroup comes, changes or is deleted        setGroup (state.go)                       forgetRefusal: unplanned
//	a member comes to the queue                    why (enqueue.go)                          as before
//	a member has its turn                          decide (planning.go), PreFilter           as below
//	    the plan has a node for it                 answer (planning.go): adopt               placing
//	    there is no plan                           answer (planning.go): refuse              refused
//	    the plan takes more than a cycle may       begin (beside.go): startJob, queueJob     planning, queued
//	    the job has a result                       conclude (beside.go): adopt, refuse       placing, refused
//	    places of the result were taken            conclude (beside.go): overtaken           unplanned
//	a result is used, or none uses it              finishJob, lateJob (beside.go)            unplanned
//	a job ends, and a gang is queued               nextJob (beside.go)                       queued: its turn comes
//	no node passes, and the gang does not fit      PostFilter, makeWay, take (preempt.go)    refused, with a reservation
//	another plugin refuses a member                setAbsent (cycle.go): release             unplanned
//	another plugin refuses the node of the plan    replan (cycle.go): release                unplanned
//	a member is reserved                           reserve (permit.go)                       placing; bindAgain: binding
//	a member is refused before all are reserved    unreserve (permit.go): release            unplanned
//	all members of the plan are reserved           permit (permit.go): startBinding          binding
//	a member is bound, or its binding fails        bind, unreserve (permit.go): finish       binding; unplanned after the last
//	claims, slices or classes change               renew (devices.go): forgetRefusal         unplanned
//	a hold, a plan or a time has ended             late (keeper.go), woken (wake.go)         unplanned
//	no member was reserved for long                late (keeper.go): release                 unplanned
//	members have a node and others get none        partly (keeper.go)                        its members are deleted
//	the last pod ends                              drop (state.go): abandon                  the gang is forgotten
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
// It must not import anything of Berth but internal/cluster/fleetview, gangplan, the packages of the scheduler below it, and
// internal/core, and of Kubernetes' scheduler only the public framework.
package gangs
