// Package firstfit predicts which devices of a node the scheduler's allocator of Kubernetes 1.37 gives to ResourceClaims of the
// simple form: requests of an exact count of one class each, and matchAttribute constraints.
//
// The allocator tries devices in a fixed order: pools by driver and name, the slices of a pool by name, the devices of a slice in
// the order of its list. It serves claims and their requests in order, and takes for each the next device that
//
//   - no claim holds, and no earlier request has;
//   - the selectors of class and request select, and whose taints the request tolerates;
//   - has enough of each counter of its pool left, beside the devices that are held;
//   - has the attribute of each constraint on the request, with the value of the devices that the constraint has already.
//
// It goes back to the last choice when a request cannot be served, and takes the first complete solution. Predict returns the same
// devices, in the same order.
//
// It guarantees:
//
//   - a prediction is that of the allocator with the default feature gates; where it would need more than the caller's steps, the
//     outcome is Unknown, and what is not of the simple form is ErrNotSimple. It is never a guess;
//   - the work of a prediction is bounded by the steps, times the constraints of a claim and the devices of the node;
//   - a Node does not change, and is safe for concurrent use.
//
// Selectors and taints are judged by the caller, as a Verdict for each device. The package does no I/O, reads no clock, and must
// not import anything but the standard library.
package firstfit
