// Package binding is the plugin of berth-scheduler that says when pods are bound: so many at a time, and those of a node in order.
//
// Scheduling cycles can be faster than the API server binds pods. Each pod then waits in a request of its own. Beyond the 100 requests
// that an HTTP/2 connection carries, client-go opens another connection per request: the API server spends its time on TLS. The plugin is
// the first at bind. It takes one of Slots places, leaves the binding to the plugins behind it, and gives the place back at postBind,
// or at unreserve when the binding failed. Members of gangs get GangSlots of them. A place that becomes free is for the gang with the
// fewest of those that wait, of which all pods of no gang are one: thousands of members that can be bound at once then do not keep others
// waiting. In a gang they get a place in the order in which they were scheduled: members, which are bound one after the other on a node,
// then do not wait behind those that were scheduled after them. A member that has to be bound before a pod of no gang on its node counts
// as one of these.
//
// A kubelet allocates devices in the order in which its pods were bound. The GPUs of a pod were predicted for the order of the scheduling
// cycles, so a pod that requests devices is bound after those that were scheduled to its node before it. One that is held up before its
// binding, for instance by a volume, is waited for only for Patience.
//
// It guarantees
//
//   - that no more than Slots pods are being bound at a time, and GangSlots of gangs, in all profiles of a scheduler together;
//   - that a pod holds at most one place, and none after its binding has ended;
//   - that a pod which waits for another one holds no place;
//   - that it never refuses a pod: it fails a binding only when the context of the binding ends.
//
// It must not import anything of Berth, and of Kubernetes' scheduler only the public framework.
package binding
