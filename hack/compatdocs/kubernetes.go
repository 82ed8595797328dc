package main

// release is what a version of Kubernetes has, by default, of what Berth uses.
type release struct {
	version string
	// podResourcesGet is the method Get of the kubelet's PodResources API.
	podResourcesGet bool
	// endpoints means that a resource can have several endpoints, so that one stays when the other ends.
	endpoints bool
	// health means that the status of a pod has the health of its devices.
	health bool
	// claims is the newest version of the API of claims; Berth uses v1 alone.
	claims string
}

// releases lists them in order.
func releases() []release {
	return []release{
		{version: "1.31", claims: "v1alpha3"},
		{version: "1.32", claims: "v1beta1"},
		{version: "1.33", claims: "v1beta2"},
		{version: "1.34", claims: "v1", podResourcesGet: true},
		{version: "1.35", claims: "v1", podResourcesGet: true},
		{version: "1.36", claims: "v1", podResourcesGet: true, health: true},
		{version: "1.37", claims: "v1", podResourcesGet: true, health: true, endpoints: true},
	}
}

// kubernetes returns the table of what Berth does with each version.
func kubernetes() string {
	var rows [][]string
	for _, r := range releases() {
		rows = append(rows, []string{
			r.version,
			choose(r.podResourcesGet, "asked", "refused: a device that the kubelet has taken from a living pod is blocked until that pod has ended"),
			choose(r.endpoints, "the devices stay healthy", "the devices are unhealthy until the new agent has registered again, at once"),
			choose(r.health, "yes", "no: see conditions and metrics"),
			choose(r.claims == "v1", "`v1`: claims for GPUs", "`"+r.claims+"`: the device plugin only"),
		})
	}
	return table([]string{"version", "PodResources `Get`", "upgrade of an agent", "health of devices in the pod's status", "API of claims"}, rows)
}

func choose(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}
