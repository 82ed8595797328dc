// Package gang plans where the members of a gang go: pods that are of use only together. It plans the gang as a whole against one state
// of a fleet, and answers a plan or the reason why there is none.
//
// A gang has members in the order of their index. The first Min of them are placed, or none is; as many of the others as there is capacity
// for are placed with them, in the order of their index. Levels of topology group the nodes into domains, the widest level first; the
// last level is the node itself. All members of a gang are in one domain of its required level, and in one of the narrowest level from
// the preferred one up in which they fit. A gang can be made of segments of consecutive members, each in one domain of a level.
//
// Of the plans with the most members on the narrowest level the best is the one with, in this order,
//
//  1. fewer degraded GPUs, then fewer below a PCIe switch where others need much bandwidth to the host, if the members do;
//  2. better links between the GPUs of each member;
//  3. fewer nodes;
//  4. less that stays idle in the domain, so that other domains stay whole;
//  5. a lower rise of the policy's loss, see package fleet;
//  6. fewer sets of linked GPUs that break.
//
// Plans returns further plans in other domains, for a caller that can try several.
//
// End says which holders, pods that hold what the gang needs, have to end so that the least number of members fits, and none if it still
// would not. It is asked for preemption, and for reservations, where the priority stands for when a pod ends by itself. Holders on one
// node are victims of a table of that node: what ends for each combination of members, see fleet.Preemption. The division among the nodes
// of a domain then adds up the violations of budgets and the pods. The highest priority is no sum, so it is the lowest up to which enough
// can end. Of holders with something on several nodes, and of those with which others end, the sets are tried.
//
// It guarantees
//
//   - that a plan is found if there is one, and that it is the best one, for gangs of up to maxStates combinations of members of different
//     classes on nodes; larger ones are planned class by class, which can miss a plan, and Plan.Exact says so. It also says so of so many
//     members of one class that to compare all divisions takes more than maxDivided steps; a plan is found for these, too;
//   - that no other holders have fewer violations of budgets, a lower highest priority or fewer pods than those of End where Ended.Exact
//     is true. It is false where several holders use one budget and not all of them keep it; where more than fleet.MaxExact victims of a
//     node can help, or all nodes have too many sets of them; where there are too many sets of holders on several nodes that end no more
//     than the best one; for gangs that are planned class by class; and for members that share GPUs. Among few holders all sets are tried
//     then;
//   - that the gang fits when the holders of End have ended, and that none of them can be left out;
//   - that the same fleet, topology, gang and holders give the same answer;
//   - that the fleet is the same after a question as before, also after one that was given up since its budget was used up, see Bound;
//   - that a plan which Renew returns is one of the present state of the fleet, whatever it was made of.
//
// What is known of a node for a gang is kept until the node changes. Nothing here is safe for concurrent use. The package does no I/O,
// reads no clock, starts no goroutine, and must not import anything but the standard library and internal/core/fleet.
package gang
