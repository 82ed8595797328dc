// Package plugins is the list of the plugins of berth-scheduler, in one place for the program and for the tests that run it. It guarantees
// that the plugins of a registry share one model, its gangs and one limit of bindings. It must not decide anything.
package plugins

import (
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basemetrics "k8s.io/component-base/metrics"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/binding"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/podgroups"
	"github.com/berth-gpu/berth/kube/internal/devices"
	"github.com/berth-gpu/berth/kube/internal/preemption"
)

// Registry returns the plugins of one scheduler. Register makes it serve a metric.
func Registry(register func(basemetrics.Registerable) error) frameworkruntime.Registry {
	return For(placement.NewFactory(placement.Deps{Register: register}), gangs.Limits{})
}

// For returns the plugins of one scheduler that share what a factory of BerthPlacement knows, with the limits of BerthGangs.
func For(places *placement.Factory, limits gangs.Limits) frameworkruntime.Registry {
	ofDevices := devices.NewFactory()
	ofGangs := gangs.NewFactory(gangs.Deps{
		Model: places.Model(), Policy: places.Policy, Devices: ofDevices.For, Clock: clock.RealClock{}, Limits: limits,
	})
	ofGroups := podgroups.NewFactory(podgroups.Deps{
		Model: places.Model(), Policy: places.Policy, Levels: ofGangs.Levels, Hold: ofGangs.Hold, Devices: ofDevices.For, Ready: places.Ready, Waits: places.Waits,
		TopologyAware: func() bool { return utilfeature.DefaultFeatureGate.Enabled(features.TopologyAwareWorkloadScheduling) },
		Unfit:         unfit,
	})
	ofPreemption := preemption.FromViews(places)
	ofPreemption.Refusal = podgroups.Refusal
	return frameworkruntime.Registry{
		placement.Name:  places.New,
		preemption.Name: preemption.New(ofPreemption),
		gangs.Name:      ofGangs.New,
		podgroups.Name:  ofGroups.New,
		binding.Name:    binding.NewFactory(gangs.GroupOf).New,
	}
}

// unfit returns the status of a pod group that fits nowhere. With an error of this type its pods wait for the events of the plugin, as
// those that a filter has refused.
func unfit(nodes int, reason string) *fwk.Status {
	return fwk.NewStatus(fwk.Unschedulable).WithError(&framework.FitError{NumAllNodes: nodes, Diagnosis: framework.Diagnosis{
		PreFilterMsg: reason, NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: sets.New(podgroups.Name),
	}})
}
