// Package stack keeps the GPUStack "default" equal to the ConfigMap of the release, and writes into its status how far the nodes are.
//
// What it guarantees: an edit or deletion of the GPUStack by others is undone, with an Event (EditUndone, DeletionUndone); labels and
// annotations of others stay. A ConfigMap that is missing or cannot be read changes no spec: the last one stays in force, and the condition
// Ready has the reason ConfigMissing or ConfigInvalid. A field that is not known is an error, not ignored.
//
// What wakes it: the ConfigMap, the GPUStack, and a GPUNode whose gate, driver or model changes; changes of GPUNodes of one second wake it
// once. At rest it writes nothing. It waits for nothing: while the API server does not serve GPUStacks yet, its cache is not synced.
//
// What it writes: the GPUStack by server-side apply, its status, Events about it.
//
// It must not import another concern, internal/node or internal/hardware.
package stack
