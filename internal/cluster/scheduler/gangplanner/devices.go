package gangplanner

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Devices is Kubernetes' own plugin for the devices of drivers: those of ResourceClaims, and of extended resources that a DeviceClass
// serves.
type Devices interface {
	// Served tells whether a DeviceClass serves an extended resource, on nodes that do not offer it otherwise.
	Served(name v1.ResourceName) bool
	// Needs tells whether the plugin gives a pod devices, on some nodes at least.
	Needs(pod *v1.Pod) bool
	// Try begins a trial, which the caller has to end. There is one at a time: where there is another one it waits, or returns nil. Any
	// goroutine may call it.
	Try(wait bool) Trial
}

// Trial gives devices to pods of a plan, one after another. Nobody else sees what it does.
type Trial interface {
	// Place gives a pod devices of a node, or says why it gets none there.
	Place(pod *v1.Pod, node fwk.NodeInfo) (refusal string)
	// Mark returns the state of the trial, Undo brings it back.
	Mark() int
	Undo(mark int)
	End()
}
