// Package mig plans how a node's GPUs are partitioned: from what is there, who holds
// it, and what is wanted, it computes which instances stay, which go, and where the
// new ones are made.
//
// Two instances of one profile at one place are the same to a layout, so a plan is a choice
// of places: every way of placing the wanted devices on the GPU is looked at, an instance
// stays when the choice has its profile at its place, and the best choice is the one with
//
//  1. the fewest holders in the way: those of instances that do not stay. The GPU's plan is
//     then one for after they ended;
//  2. the fewest instances destroyed, then the fewest held ones among them, then those at
//     the lowest starts;
//  3. the most room: for each profile from the largest to the smallest (by memory slices, then
//     compute slices, then NVML's number), how many further instances of it alone would
//     still fit, compared in that order;
//  4. the highest starts, of the largest profile first.
//
// On the GPUs of 8 memory slices the third goal puts a 3g at 4 before 0, a 2g at 4, 2, 0 and
// a 1g at 6, as the usual rule of thumb does. It departs from the rule where the rule
// wastes a slice: two 1g go to 5 and 4, not to 6 and 5, since slice 7 is of use to nobody without 6.
//
// What fits: memory slices are never shared; the compute slices of all instances are at most the
// GPU's; a profile has at most Max instances; and of the profiles with all of one kind of media
// engine (+me, +me.all) there is at most one instance, whichever it is of. Beside one with all media engines (+me.all)
// there are only profiles without any (-me).
//
// It guarantees that a plan never destroys an instance that is held; that it keeps
// every instance that the wanted layout can use too, and touches no GPU that need not
// change; that it is exact (where a layout exists that keeps the held instances, it is
// found; where none exists, the smallest set of holders in the way is named); that every
// creation of a plan fits, in the order listed, once all its destructions are done; and that the
// same input gives the same plan. It is pure: it must not import anything but the standard
// library and the pure rooms.
package mig
