// Package gpuquota keeps a ResourceQuota in each namespace that a GPUQuota selects, with the names under which the API server counts the
// devices that its limits select.
//
// What it guarantees: the names that devices have where no rule names them are limited from the start, and names that agents begin to
// advertise follow; a name that was limited stays so while no node has such devices, also after a restart of the operator (an annotation
// of the ResourceQuotas says which); an edit or deletion of the ResourceQuota by others is undone; a ResourceQuota of the same name that
// the operator did not make is left alone and reported; a namespace that is not selected any more loses it; a namespace in which
// a write is refused does not keep it from the others. With a GPUQuota go its ResourceQuotas, which it owns.
//
// What wakes it: a GPUQuota, its ResourceQuotas, the labels of namespaces, and a GPUNode whose devices are advertised otherwise. Health and
// holders of GPUs do not. At rest it writes nothing.
//
// What it writes: ResourceQuotas by server-side apply, the status of GPUQuotas, Events.
//
// It must not import another concern, internal/node or internal/hardware.
package gpuquota
