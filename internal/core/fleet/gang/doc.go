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
// It guarantees
//
//   - that a plan is found if there is one, and that it is the best one, for gangs of up to maxStates combinations of members of different
//     classes on nodes; larger ones are planned class by class, which can miss a plan, and Plan.Exact says so;
//   - that the same fleet, topology and gang give the same plan;
//   - that the fleet is the same after a plan as before.
//
// What is known of a node for a gang is kept until the node changes. Nothing here is safe for concurrent use. The package does no I/O,
// reads no clock, starts no goroutine, and must not import anything but the standard library and internal/core/fleet.
package gang
