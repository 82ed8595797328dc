// Package definitions keeps the CustomResourceDefinitions and the DeviceClasses of a cluster equal to those that the operator embeds.
//
// It guarantees:
//   - Each object has the spec, labels and annotations that are embedded, but for labels and annotations that others add. A field that is
//     edited, added or removed by others, and an object that is deleted, is restored when the watch reports it.
//   - It writes nothing while nothing differs, and it writes only on the version of an object that it has read.
//   - It never changes a CustomResourceDefinition of a higher schema version than its own: it ends the operator with a [NewerError].
//   - It leaves a DeviceClass that Berth did not make alone, unless its spec is already the wanted one.
//
// A watch (metadata only, restricted to the label app.kubernetes.io/part-of=berth), a retry after an error, and the start wake it. A
// reconcile reads one object from the API server, not from a cache. The controllers wait for nothing but the API server; where it does
// not serve resource.k8s.io/v1, that of the DeviceClasses asks again every minute.
//
// It must not import packages of Berth but the API types, and keeps no state that decides anything.
package definitions
