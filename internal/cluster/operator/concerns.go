package operator

import (
	"log/slog"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpuquota"
)

// shared is what all concerns are made from.
type shared struct {
	// client reads from the API server itself and writes.
	client    client.Client
	resources definitions.Resources
	clock     clock.Clock
	log       *slog.Logger
	// stop ends the operator with an error.
	stop func(error)
}

// concern is one thing that the operator keeps in order.
type concern struct {
	name string
	// cached are the objects that its controllers watch.
	cached func() map[client.Object]cache.ByObject
	add    func(manager.Manager, shared) error
}

// concerns lists all of them.
func concerns() []concern {
	return []concern{
		{name: "gpuquota", cached: gpuquota.Cached, add: func(m manager.Manager, s shared) error {
			classes, err := definitions.ClassNames()
			if err != nil {
				return err
			}
			return gpuquota.Add(m, gpuquota.Deps{Client: s.client, Events: m.GetEventRecorder(Name), Classes: classes, Clock: s.clock,
				Log: s.log.With("concern", "gpuquota")})
		}},
		{name: "definitions", cached: definitions.Cached, add: func(m manager.Manager, s shared) error {
			return definitions.Add(m, definitions.Deps{Client: s.client, Resources: s.resources, Events: m.GetEventRecorder(Name),
				Clock: s.clock, Log: s.log.With("concern", "definitions"), Stop: s.stop})
		}},
	}
}
