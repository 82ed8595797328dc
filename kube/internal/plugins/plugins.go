// Package plugins is the list of the plugins of berth-scheduler, in one place for the program and for the tests that run it. It guarantees
// that the plugins of a registry share one model, its gangs and one limit of bindings. It must not decide anything.
package plugins

import (
	basemetrics "k8s.io/component-base/metrics"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/binding"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/kube/internal/preemption"
)

// Registry returns the plugins of one scheduler. Register makes it serve a metric.
func Registry(register func(basemetrics.Registerable) error) frameworkruntime.Registry {
	places := placement.NewFactory(placement.Deps{Register: register})
	return frameworkruntime.Registry{
		placement.Name:  places.New,
		preemption.Name: preemption.New(preemption.FromViews(places)),
		gangs.Name:      gangs.NewFactory(gangs.Deps{Model: places.Model(), Policy: places.Policy, Clock: clock.RealClock{}}).New,
		binding.Name:    binding.NewFactory().New,
	}
}
