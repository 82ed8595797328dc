// Package gpuquota keeps a ResourceQuota in each namespace that a GPUQuota selects, with the names under which the API server counts the
// devices that its limits select.
//
// What it guarantees: names that agents begin or cease to advertise follow; an edit or deletion of the ResourceQuota by others is undone; a
// ResourceQuota of the same name that the operator did not make is left alone and reported; a namespace that is not selected any more loses
// it. With a GPUQuota go its ResourceQuotas, which it owns.
//
// What wakes it: a GPUQuota, its ResourceQuotas, the labels of namespaces, and a GPUNode whose devices are advertised otherwise. Health and
// holders of GPUs do not. At rest it writes nothing.
//
// What it writes: ResourceQuotas by server-side apply, the status of GPUQuotas, Events.
//
// It must not import another concern, internal/node or internal/hardware.
package gpuquota
