// Package podgroups is the scheduler's plugin BerthPodGroups: it plans the groups of Kubernetes' own pod group cycle (feature gate
// GenericWorkload) as a whole. GangScheduling stays what lets the members of a group wait for one another.
//
// With TopologyAwareWorkloadScheduling it takes the place of TopologyPlacementGenerator. It returns at most maxPlacements placements, the
// best first: the node of each member by the plans for several domains, then the placements that Kubernetes would try, in which each
// member can use any node. The scheduler evaluates all of them. Once all members of a placement have been reserved, the members of the
// later ones are refused before anything else is computed, so that these cost next to nothing. Of several placements that fit, the one
// with the most members wins, then the first. Without that gate the first member plans the group.
//
// It guarantees
//
//   - that the same state gives the same placements, in the same order;
//   - that a group which does not fit is refused before its members are evaluated, with the reason in the conditions of the PodGroup and
//     its pods, and that pods of lower priority can end for it as without the plugin;
//   - that a group of which the planner has no answer, also since it takes longer than mostSteps, gets the placements of
//     TopologyPlacementGenerator, and so does a composite group;
//   - that it changes nothing for pods without spec.schedulingGroup, and does nothing without the feature gates.
//
// It has to be the first at preFilter and the last at reserve. It keeps nothing between cycles, does no I/O but for its factory's
// dependencies, and belongs to the scheduling cycle. It must not import anything of Berth but internal/cluster/gangplan, the
// packages gangplanner, claims and model of the scheduler, and internal/core, and of Kubernetes' scheduler only the public framework.
package podgroups
