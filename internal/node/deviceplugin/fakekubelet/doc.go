// Package fakekubelet is the device manager's side of the kubelet on real Unix sockets, for tests and for trying out a
// device plugin without a kubelet.
//
// It guarantees the behaviour that a plugin must support, according to the device manager of Kubernetes 1.37: it
// removes the directory's sockets at the start; there is one endpoint per resource and socket path; a path that is
// registered while it is still connected is refused and its connection forgotten; the last list of any stream is used;
// when a stream ends another endpoint is promoted, and only without one does the resource become unhealthy. Legacy
// changes the last point to the behaviour of older kubelets.
//
// It allocates nothing by itself and keeps no checkpoint. It must not import the device plugin that it tests.
package fakekubelet
