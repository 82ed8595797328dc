// Package mig plans how a node's GPUs are partitioned. From the existing instances, their holders and the wanted layout
// it computes which instances are kept, which are destroyed, and where new ones are created.
//
// To a layout, two instances of one profile with the same placement are equal, so a plan is a choice of placements.
// Every way of placing the wanted devices on the GPU is considered; an instance is kept when the choice has its profile
// at its placement. The best choice is the one with
//
//  1. the fewest blocking holders: the holders of instances that are not kept. The GPU's plan then takes effect after they
//     have ended;
//  2. the fewest instances destroyed, then the fewest held ones among them, then those at the lowest starts;
//  3. the most remaining capacity: for each profile from the largest to the smallest (by memory slices, then compute slices,
//     then NVML's number), how many further instances of it alone would still fit, compared in that order;
//  4. the highest starts, of the largest profile first.
//
// On the GPUs with 8 memory slices the third goal places a 3g at 4 before 0, a 2g at 4, 2, 0 and a 1g at 6, as the
// usual rule of thumb does. It departs from the rule where the rule wastes a slice: two 1g go to 5 and 4, not to 6 and
// 5, since no profile can use slice 7 without slice 6.
//
// Devices can also be wanted at exact placements, such as those of claims. Then there is no choice: an instance is kept if it
// is exactly one of the wanted ones, the others are destroyed, and each missing one is created at its place.
//
// What fits: memory slices are never shared; the compute slices of all instances are at most the GPU's; a profile has
// at most Max instances; and of the profiles with all media engines of one kind (+me, +me.all) there is at most one
// instance in total. Beside an instance with all media engines (+me.all), only profiles without any (-me) fit.
//
// It guarantees that
//
//   - a plan never destroys an instance that is held;
//   - it keeps every instance that the wanted layout can use, and changes no GPU that need not change;
//   - it is exact: if a layout exists that keeps the held instances, the plan finds it; if none exists, the plan names
//     the smallest set of blocking holders;
//   - every creation of a plan fits, in the order listed, once all its destructions are done;
//   - the same input gives the same plan.
//
// It is pure: it must not import anything but the standard library and the other packages of core.
package mig
