// Package nodeapi is the one writer of a node's agent to the API server.
//
// Each object has its own worker: a [Publisher] for what has a wanted state (the GPUNode, the labels, the condition and
// the taint of the Node, the label nvidia.com/mig.config.state), and [Events] for events. A write that hangs delays no
// other object. There is one retry policy, [Retry].
//
// What wakes a worker: Publish, and a resync tick, since an object may be edited by hand or created again.
//
// What it writes: labels and conditions by server-side apply, each with its own field manager, whose name does not
// change, since objects on upgraded nodes have it. The taint is never applied: the taints of a Node are one atomic
// list. It is read, changed by its key, and patched with the resourceVersion that was read. Nothing is written that the
// API server already has, and nothing is removed at a shutdown; only the Remove functions do that.
//
// What it never waits for: files and the driver. Nothing waits for this package, except a caller of
// [Publisher.PublishAndWait], for as long as its context allows.
//
// It must not import other packages of Berth than internal/core/gpu and internal/node/signal.
package nodeapi
