package binding

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// requestsDevices tells whether a kubelet allocates devices of a device plugin to a pod: whether it requests an extended resource, which
// has a domain other than Kubernetes' own.
func requestsDevices(pod *v1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Limits {
			if domain, _, found := strings.Cut(string(name), "/"); found && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") {
				return true
			}
		}
	}
	return false
}
