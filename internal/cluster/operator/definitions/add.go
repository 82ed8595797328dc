package definitions

import (
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

// Deps are what the controllers work with.
type Deps struct {
	// Client reads from the API server itself, not from a cache.
	Client    client.Client
	Resources Resources
	Events    events.EventRecorder
	Objects   *attempts.Objects
	Clock     clock.Clock
	Log       *slog.Logger
	// Stop ends the operator with an error.
	Stop func(error)
}

// Cached are the objects of which the caches keep the metadata.
func Cached() map[client.Object]cache.ByObject {
	selected := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{partOf: partOfBerth})}
	return map[client.Object]cache.ByObject{metadataOf(definitionKind()): selected, metadataOf(classKind()): selected}
}

func metadataOf(k kind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	return object
}

// Add adds the two controllers, one for each kind, to a manager.
func Add(m manager.Manager, deps Deps) error {
	for _, k := range []kind{definitionKind(), classKind()} {
		if err := add(m, deps, k); err != nil {
			return fmt.Errorf("make the controller of %s: %w", k.resource, err)
		}
	}
	return nil
}

func add(m manager.Manager, deps Deps, k kind) error {
	r, err := newReconciler(deps, k)
	if err != nil {
		return err
	}
	c, err := controller.NewTyped(k.resource, m, controller.TypedOptions[request]{Reconciler: r})
	if err != nil {
		return err
	}
	return c.Watch(whenServed{kind: k, names: sortedNames(r.wanted), resources: deps.Resources, clock: deps.Clock, log: deps.Log,
		watch: source.TypedKind(m.GetCache(), metadataOf(k), wake(r.wanted))})
}

func newReconciler(deps Deps, k kind) (*reconciler, error) {
	all, err := embedded(k)
	if err != nil {
		return nil, err
	}
	return &reconciler{kind: k, wanted: all, client: deps.Client, events: deps.Events, objects: deps.Objects, clock: deps.Clock, log: deps.Log, stop: deps.Stop,
		reported: map[string]string{}, seen: map[string]bool{}, dropped: map[string]drop{}}, nil
}
