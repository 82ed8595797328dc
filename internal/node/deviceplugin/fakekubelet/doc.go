// Package fakekubelet is the device manager's side of the kubelet, over real Unix
// sockets, for tests and for trying out a device plugin where no kubelet is.
//
// It guarantees the behaviour that a plugin must live with, read from the device manager of
// Kubernetes 1.37: the directory's sockets are removed at the start; one endpoint per
// resource and socket path; a path that is registered while it is still connected is
// refused and its connection forgotten; the last list of any stream counts; when a
// stream ends another endpoint is promoted, and only without one does the resource
// become unhealthy. Legacy changes the last point to what kubelets did before.
//
// It allocates nothing by itself and keeps no checkpoint. It must not import the
// device plugin that it is there to test.
package fakekubelet
