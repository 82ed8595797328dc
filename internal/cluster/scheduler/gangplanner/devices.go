package gangplanner

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/fleet"
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

// needsDevices tells whether a plan depends on what Kubernetes' plugin for devices says.
func (p *Planner) needsDevices(needs *gangplan.Requirements) bool {
	return p.Devices != nil && slices.ContainsFunc(needs.Classes, func(c gangplan.Class) bool { return p.Devices.Needs(c.Pod) })
}

// manager returns the devices of the scheduler, nil where they are not known.
func (p *Planner) manager() fwk.SharedDRAManager {
	if p.Claims == nil {
		return nil
	}
	return p.Claims.Manager()
}

// requestsOn returns what a pod requests of the GPUs of a node that the model counts, and of its CPU and memory: not what a DeviceClass
// serves there, nor the devices of its claims.
func (p *Planner) requestsOn(pod *v1.Pod, node fwk.NodeInfo) []fleet.Shape {
	requests := p.Model.Requests(pod)
	base := requests[0]
	kept := slices.DeleteFunc(requests, func(s fleet.Shape) bool { return s.GPUs == 0 || p.servedOn(v1.ResourceName(s.Resource), node) })
	if len(kept) == 0 {
		return []fleet.Shape{{CPU: base.CPU, Memory: base.Memory}}
	}
	kept[0].CPU, kept[0].Memory = base.CPU, base.Memory
	return kept
}

// servedOn tells whether a DeviceClass serves an extended resource on a node.
func (p *Planner) servedOn(name v1.ResourceName, node fwk.NodeInfo) bool {
	return p.Devices != nil && p.Devices.Served(name) && node.GetAllocatable().GetScalarResources()[name] == 0
}
