// Package drafleet turns ResourceSlices, DeviceClasses and ResourceClaims into the values of internal/core/fleet/firstfit, which
// predicts which devices the scheduler allocates.
//
// It chooses the slices and pools of a node as the scheduler's allocator of Kubernetes 1.37 does with the default feature gates:
// nodes and selectors of slices, generations, incomplete and invalid pools, their order. A claim is of the simple form when each of
// its requests is exactly{} with allocationMode ExactCount, without admin access, capacity and derived attributes, and each of its
// constraints is a matchAttribute. Everything else is an error that wraps firstfit.ErrNotSimple; so is a request that selects a
// device with binding conditions, multiple allocations or a request policy, or a counter that is no whole number from 0 to
// firstfit.MaxCounter.
//
// It guarantees that an expression is evaluated at most once for a device of a slice with one resourceVersion, as long as a slice is
// asked about no more than 256 expressions. Objects that it is given must not change, as those of an informer do not. DeviceTaintRules
// are not read: the slices must have their taints, as those of the scheduler's SharedDRAManager have.
//
// It is safe for concurrent use, talks to no API server, and must not import client-go nor the allocator
// (k8s.io/dynamic-resource-allocation/structured), which a scheduler has already.
package drafleet
