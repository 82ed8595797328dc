package operator

import (
	"log/slog"
	"maps"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-gpu/berth/internal/cluster/operator/agents"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpunodes"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpuquota"
	"github.com/berth-gpu/berth/internal/cluster/operator/stack"
	"github.com/berth-gpu/berth/internal/cluster/operator/validation"
)

// shared is what all concerns are made from.
type shared struct {
	// client reads from the API server itself and writes.
	client    client.Client
	resources definitions.Resources
	// objects are those that cannot be brought in line, of all concerns.
	objects *attempts.Objects
	// namespace is the operator's own.
	namespace string
	clock     clock.Clock
	log       *slog.Logger
	// stop ends the operator with an error.
	stop func(error)
}

// concern is one thing that the operator keeps in order.
type concern struct {
	name string
	// cached are the objects that its controllers watch, but for those that another concern names, or [cached].
	cached func(namespace string) map[client.Object]cache.ByObject
	add    func(manager.Manager, shared) error
}

// concerns lists all of them.
func concerns() []concern {
	return []concern{
		{name: "gpuquota", cached: anywhere(gpuquota.Cached), add: func(m manager.Manager, s shared) error {
			classes, err := definitions.ClassesByResource()
			if err != nil {
				return err
			}
			return gpuquota.Add(m, gpuquota.Deps{Client: s.client, Events: m.GetEventRecorder(Name), Objects: s.objects, Classes: classes, Clock: s.clock,
				Log: s.log.With("concern", "gpuquota")})
		}},
		{name: "definitions", cached: anywhere(definitions.Cached), add: func(m manager.Manager, s shared) error {
			return definitions.Add(m, definitions.Deps{Client: s.client, Resources: s.resources, Events: m.GetEventRecorder(Name),
				Objects: s.objects, Clock: s.clock, Log: s.log.With("concern", "definitions"), Stop: s.stop})
		}},
		{name: "stack", cached: stack.Cached, add: func(m manager.Manager, s shared) error {
			return stack.Add(m, stack.Deps{Client: s.client, Events: m.GetEventRecorder(Name), Objects: s.objects, Namespace: s.namespace, Clock: s.clock,
				Log: s.log.With("concern", "stack")})
		}},
		{name: "agents", cached: func(namespace string) map[client.Object]cache.ByObject {
			return agents.Cached(namespace, validation.PodName)
		}, add: func(m manager.Manager, s shared) error {
			return agents.Add(m, agents.Deps{Client: s.client, Events: m.GetEventRecorder(Name), Namespace: s.namespace, Log: s.log.With("concern", "agents")})
		}},
		// It reads the GPUStack and its pods from the caches of those before.
		{name: "validation", cached: anywhere(validation.Cached), add: func(m manager.Manager, s shared) error {
			classes, err := definitions.ClassesByResource()
			if err != nil {
				return err
			}
			return validation.Add(m, validation.Deps{Client: s.client, Events: m.GetEventRecorder(Name), Objects: s.objects, Namespace: s.namespace, Classes: classes,
				Driver: definitions.ClassDriver, Clock: s.clock, Log: s.log.With("concern", "validation")})
		}},
	}
}

// cached are the objects of all caches. Several concerns watch GPUNodes, of which there can be only one cache.
func cached(namespace string) map[client.Object]cache.ByObject {
	all := gpunodes.Cached()
	for _, c := range concerns() {
		maps.Copy(all, c.cached(namespace))
	}
	return all
}

// anywhere is for what does not depend on the operator's namespace.
func anywhere(cached func() map[client.Object]cache.ByObject) func(string) map[client.Object]cache.ByObject {
	return func(string) map[client.Object]cache.ByObject { return cached() }
}
