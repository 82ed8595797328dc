// Package dra tests what Berth publishes for Dynamic Resource Allocation against Kubernetes' own code.
//
// Real are: the API server's defaulting, conversion, strategies and validation of ResourceSlices, DeviceClasses and
// ResourceClaimTemplates; the scheduler's allocator (k8s.io/dynamic-resource-allocation/structured) with its CEL; and the controller of
// the library for DRA drivers that writes slices (resourceslice). Nothing is started: all of it runs in the test's process.
//
// The slices are the golden files of internal/node/dra/pool, and those of simulated machines. The benchmarks print the time of an
// allocation on 8 x H100 with every MIG device.
package dra
